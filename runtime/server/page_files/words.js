// Figures as words.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (value) => whole.format(value);

/** At most some five characters: 950, 1.2K, 31M. */
export const brief = (value) => (value < 1000 ? whole.format(value) : short.format(value));

export const percent = (share) => `${whole.format(share * 100)} %`;

export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

export function seconds(value) {
  if (value < 1) return `${whole.format(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${whole.format(value)} s`;
  return value < 7200 ? `${whole.format(value / 60)} min` : `${whole.format(value / 3600)} h`;
}

/** In whole seconds, so that it does not look more exact than it is. */
export const age = (value) => (value < 120 ? `${Math.floor(value)} s` : seconds(value));

/** Sets text only where it changes, so that nothing flickers and no selection is lost. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
