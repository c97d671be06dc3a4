//! The words of `resurgo console`, for help and completion, too.

/// A word, what follows it, and what it does.
pub struct Word {
    pub name: &'static str,
    pub takes: &'static str,
    about: &'static str,
}

const fn word(name: &'static str, takes: &'static str, about: &'static str) -> Word {
    Word { name, takes, about }
}

pub const WORDS: [Word; 13] = [
    word("hosts", "", "the nodes, and how each stands"),
    word("ranks", "", "what each rank does"),
    word("status", "", "the job as a whole"),
    word("events", "", "the last events"),
    word("protocol", "", "the protocol of the job"),
    word("add", "HOST[:SLOTS]", "one more host, as resurgo add-host"),
    word("drain", "NODE", "the ranks of a node go on elsewhere"),
    word("remove", "NODE", "the same, and the node leaves the job"),
    word("kill", "RANK", "kill a rank on purpose; recovery follows"),
    word("checkpoint", "", "take images of all ranks now"),
    word(
        "suspend",
        "",
        "take images of all ranks, and end the job so that it can be resumed",
    ),
    word("help", "", "these words"),
    word("quit", "", "leave the console; the job goes on"),
];

/// All words, as help has them.
pub fn help() -> String {
    let line = |word: &Word| format!("  {:<28}{}\n", format!("{} {}", word.name, word.takes), word.about);
    WORDS.iter().map(line).collect()
}

pub fn find(name: &str) -> Option<&'static Word> {
    WORDS.iter().find(|word| word.name == name)
}

pub fn is_word(name: &str) -> bool {
    find(name).is_some()
}
