"""The few-shot questions of `radixlm demo`, written for this project.

All prompts begin with the same examples and differ in their last lines only, which is the case that a
prefix cache is for.
"""

from __future__ import annotations

INSTRUCTION = "Answer each question about the world in a few words."

EXAMPLES: tuple[tuple[str, str], ...] = (
    ("Which planet do we live on?", "Earth."),
    ("How many days does a week have?", "Seven."),
    ("What do bees make from nectar?", "Honey."),
    ("Which metal is liquid at room temperature?", "Mercury."),
    ("What is the largest animal that has ever lived?", "The blue whale."),
    ("In which country do people find the city of Kyoto?", "Japan."),
    ("What is the name of the force that makes an apple fall?", "Gravity."),
    ("How many strings does a violin have?", "Four."),
    ("What do we call a doctor for animals?", "A veterinarian."),
    ("Which gas do green plants take from the air?", "Carbon dioxide."),
    ("What is the longest river in South America?", "The Amazon."),
    ("Which season comes after winter?", "Spring."),
    ("Who wrote the play about Romeo and Juliet?", "William Shakespeare."),
    ("What do you get when water freezes?", "Ice."),
    ("How many legs does a spider have?", "Eight."),
    ("What is the capital of Egypt?", "Cairo."),
    ("Which organ pumps blood through the body?", "The heart."),
    ("What is the opposite of north?", "South."),
    ("Which bird is the largest of all living birds?", "The ostrich."),
    ("What tool shows hours and minutes?", "A clock."),
    ("In which ocean does Hawaii lie?", "The Pacific Ocean."),
    ("What is the hardest natural material?", "Diamond."),
    ("Which grain is used to make most bread?", "Wheat."),
    ("How many months have thirty-one days?", "Seven."),
    ("What is the capital of Norway?", "Oslo."),
    ("Which language do most people in Brazil speak?", "Portuguese."),
    ("What do caterpillars turn into?", "Butterflies or moths."),
    ("Which star gives light to our days?", "The Sun."),
    ("How many continents are there?", "Seven."),
    ("What do we call frozen rain that falls in balls?", "Hail."),
    ("Which instrument has eighty-eight keys?", "The piano."),
    ("What is the color of an emerald?", "Green."),
    ("Which continent is the coldest?", "Antarctica."),
    ("What do fish use to breathe under water?", "Gills."),
)

QUESTIONS: tuple[str, ...] = (
    "What is the capital of France?",
    "Which animal gives us wool?",
    "How many hours does a day have?",
    "What is the capital of Italy?",
    "Which planet is known for its rings?",
    "What do cows eat?",
    "What is the color of the sky on a clear day?",
    "What is frozen water called?",
    "In which country is the Great Wall?",
    "What do people use to cut paper?",
    "Which gas do people need to breathe?",
    "What is the tallest mountain on Earth?",
)


def few_shot_prompt(question: str) -> str:
    """Instruction, all examples, then the question with its answer left open."""
    examples = "".join(f"Question: {asked}\nAnswer: {answer}\n\n" for asked, answer in EXAMPLES)
    return f"{INSTRUCTION}\n\n{examples}Question: {question}\nAnswer:"
