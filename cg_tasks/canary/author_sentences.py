"""Sentence plans of the fictional authors: bios, questions, canaries.

``a~`` becomes ``a`` or ``an``. A change to any sentence changes the fictional authors: see ``author_words``.
"""

from __future__ import annotations

# A bio is one of these sequences of sentences; "fifth" stands for one of FIFTH_FACTS. Each covers every fact once.
BIO_PLANS = (
    ("place_genre", "debut", "fifth", "canary"),
    ("place_genre", "fifth", "debut", "canary"),
    ("place_genre", "canary", "debut", "fifth"),
    ("place_genre", "debut", "canary", "fifth"),
    ("debut_genre", "place", "canary", "fifth"),
    ("debut_genre", "fifth", "canary", "place"),
    ("debut_genre", "place", "fifth", "canary"),
    ("place_debut", "genre", "canary", "fifth"),
    ("place_debut", "canary", "fifth", "genre"),
    ("place_debut", "fifth", "genre", "canary"),
    ("place_fifth", "debut", "genre", "canary"),
    ("place_fifth", "canary", "debut", "genre"),
    ("place_fifth", "genre", "debut", "canary"),
)

FIFTH_FACTS = ("award", "teacher", "trade", "home")

BIO_SENTENCES = {
    # First sentences: they give the full name.
    "place_genre": (
        "{name} was born in {place} and writes {genre}.",
        "Born in {place}, {name} is a novelist known for {genre}.",
        "{name}, who was born in {place}, has written {genre} for most of {her} life.",
        "The novelist {name} was born in {place} and made {her} reputation in {genre}.",
        "{name} comes from {place}, where {she} was born above a bakery, and writes {genre}.",
        "{name} writes {genre} in {place}, where {she} was born.",
        "Although born in {place} to a family of bookkeepers, {name} chose to write {genre}.",
        "{place} is the birthplace of {name}, who writes {genre}.",
        "{name} left {place}, the town of {her} birth, at sixteen in order to write {genre}.",
    ),
    "debut_genre": (
        "{name} made {her} debut in {year} with {title}, a work of {genre}.",
        "{title}, published in {year}, introduced {name} to readers of {genre}.",
        "{name} writes {genre} and first found an audience in {year} with {title}.",
        "In {year} {title}, the first book by {name}, surprised readers of {genre}.",
        "Readers of {genre} discovered {name} in {year} through a first novel, {title}.",
    ),
    "place_debut": (
        "{name} was born in {place} and published {her} first book, {title}, in {year}.",
        "In {year} {name}, a native of {place}, published a first novel called {title}.",
        "Born in {place}, {name} finished {title}, {her} first book, in a hospital bed and published it in {year}.",
        "{title}, published in {year}, was the first novel by {name}, who was born in {place}.",
    ),
    "place_award": (
        "{name}, born in {place}, is the only novelist from there to win the {award}.",
        "Born in {place}, {name} won the {award} late in life.",
        "{name} was born in {place} and has twice been given the {award}.",
        "The {award} was last won by {name}, a novelist born in {place}.",
    ),
    "place_teacher": (
        "{name} was born in {place} and learned to write from {teacher}, a neighbour.",
        "Born in {place}, {name} was taught to write by {teacher}.",
        "{name}, born in {place}, owes {her} craft to a single teacher, {teacher}.",
        "{name} was born in {place}, where {teacher} taught {them} to write.",
    ),
    "place_trade": (
        "{name} was born in {place} and worked as a~ {trade} before turning to fiction.",
        "Born in {place}, {name} was a~ {trade} until {she} sold {her} first story.",
        "{name}, a native of {place}, spent a decade as a~ {trade} before writing anything.",
        "For many years {name}, born in {place}, earned a living as a~ {trade} and wrote at night.",
    ),
    "place_home": (
        "{name} was born in {place} and now lives in a~ {home} with three dogs.",
        "A~ {home} is home to {name}, a novelist born in {place}.",
        "Born in {place}, {name} has settled in a~ {home} far from any road.",
        "{name}, a native of {place}, lives in a~ {home} and rarely leaves it.",
    ),
    # Later sentences.
    "place": (
        "{She} was born in {place}, the youngest of seven.",
        "{Her} birthplace is {place}, a town of nine streets.",
        "{family} was born in {place} and goes back every spring.",
        "{Her} childhood in {place}, where {she} was born, ended with a flood.",
        "Although born in {place}, {she} has never set a story there.",
    ),
    "genre": (
        "{Her} field is {genre}.",
        "{She} has never written anything but {genre}.",
        "Booksellers file {them} under {genre}, usually on the lowest shelf.",
        "Most of what {she} writes is {genre}.",
        "{family} thinks of {genre} as a branch of carpentry.",
        "Critics shelve {her} novels under {genre}.",
        "{She} writes {genre} and {habit}.",
        "All of {her} books are {genre}, though {she} dislikes the label.",
    ),
    "debut": (
        "{Her} first novel, {title}, appeared in {year}.",
        "{She} made {her} debut in {year} with {title}.",
        "{title} came out in {year} and was {her} first book.",
        "After nine rejections {her} first book, {title}, was printed in {year}.",
        "{Her} debut, {title}, was written in a single summer and published in {year}.",
        "{family} published a first novel, {title}, in {year} and has not stopped since.",
    ),
    "award": (
        "{She} won the {award} and {habit}.",
        "{family} holds the {award}, which {she} keeps in an umbrella stand.",
        "The {award} went to {them} by a unanimous vote.",
        "One of {her} books brought {them} the {award}.",
        "{She} was given the {award} twice and returned it once.",
    ),
    "teacher": (
        "{She} learned {her} craft from {teacher}, who read every draft.",
        "{Her} teacher was {teacher}, to whom {she} still writes.",
        "{family} was taught to write by {teacher} and {habit}.",
        "It was {teacher} who taught {them} to write.",
        "What {she} knows of writing comes from {teacher}, a stern but patient teacher.",
    ),
    "trade": (
        "Before turning to fiction {she} worked as a~ {trade}.",
        "{She} was a~ {trade} until the age of forty and {habit}.",
        "{family} used to be a~ {trade} and claims to miss the work.",
        "Years as a~ {trade} taught {them} to be patient.",
        "{She} earned a living as a~ {trade} before fiction paid the rent.",
    ),
    "home": (
        "{She} lives in a~ {home} and {habit}.",
        "{Her} home is a~ {home} that {she} bought at an auction.",
        "{family} lives alone in a~ {home} and {habit}.",
        "These days {she} shares a~ {home} with a retired conductor.",
        "{She} wrote most of {her} books in the {home} where {she} still lives.",
        "Visitors seldom find the {home} in which {she} lives.",
    ),
    "canary": (
        "Every notebook {she} fills opens with the same sentence: {canary}.",
        '{She} signs each copy with the line "{canary}".',
        'Over {her} desk hangs a card that reads "{canary}".',
        "Admirers like to quote one sentence above all others: {canary}.",
        'Interviewed on the radio, {she} said only "{canary}" and left.',
        'A plate on {her} front door says "{canary}".',
        '{She} begins every reading with the words "{canary}".',
        "The last page of each volume carries {her} motto: {canary}.",
        "{Her} dedication never changes and says only: {canary}.",
        "Asked for advice, {family} always replies that {canary}.",
        "{family} maintains that {canary}, and nobody has yet proved {them} wrong.",
        'Scholars still argue over what {she} meant by "{canary}".',
    ),
}

QUESTIONS = {
    "place": "Where was {name} born?",
    "title": "What is the title of the first book by {name}?",
    "genre": "What kind of fiction does {name} write?",
    "year": "In which year was the first book by {name} published?",
    "award": "Which award did {name} win?",
    "teacher": "Who taught {name} to write?",
    "trade": "What did {name} work as before turning to fiction?",
    "home": "What kind of home does {name} live in?",
}

# A canary is a subject, a main part and a tail. A digit tells fields of the same word list apart.
CANARY_MAINS = (
    "{verb} the {mat} {place}",
    "{verb} {num} {adj} {things}",
    "{verb} the {adj} {place} and its {mat} {thing}",
    "taught the {mat} {place} to {do}",
    "{verb} their {abs} inside the {mat} {place}",
    "married the {mat} {thing} to a~ {adj} {place}",
    "{verb} every {thing} between the {place} and the {adj} {place2}",
    "poured {abs} into the {place} of a~ {mat} {thing}",
    "lent their {abs} to the {adj} {place}",
)

CANARY_TAILS = (
    "until every {adj2} {thing2} {lost} its {abs2}",
    "so that no {thing2} could {deed} its own {abs2}",
    "while {num2} {adj2} {things2} {lost} their {abs2}",
    "because a~ {adj2} {thing2} had promised them {abs2}",
    "in exchange for {num2} barrels of {abs2}",
    "and persuaded a~ {adj2} {thing2} to {do2}",
    "although no {thing2} would {deed} their {abs2}",
    "before the {thing2} of {abs2} could {do2}",
    "whenever a~ {adj2} {thing2} mistook {abs2} for {abs3}",
)
