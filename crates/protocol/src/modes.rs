//! What becomes of a communicator in which a member has failed (FT-MPI; Gabriel 2003, §3.1.1).

/// What a communicator becomes when survivors rebuild it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Becomes {
    /// Nothing: the job ends.
    Abort,
    /// As large as before, with gaps in the places of failed ranks.
    Blank,
    /// Smaller: survivors are numbered anew.
    Shrink,
    /// As large as before: new ranks are in the places of failed ones.
    Rebuild,
    /// The same with new ranks behind the survivors, which are numbered anew.
    RebuildShrink,
}

/// How a communicator behaves, from a failure on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Modes {
    pub becomes: Becomes,
    /// Messages between survivors go on (CONT); otherwise every call is an error until it is rebuilt (NOP).
    pub messages_go_on: bool,
    /// Collective calls end with a barrier: well for all members, or for none.
    pub is_strict: bool,
}

/// The program deals with failures by ULFM's rules.
pub const ULFM: u64 = 1;

/// Names of what communicators become.
pub const NAMES: [(&str, Becomes); 5] = [
    ("abort", Becomes::Abort),
    ("blank", Becomes::Blank),
    ("shrink", Becomes::Shrink),
    ("rebuild", Becomes::Rebuild),
    ("rebuild-shrink", Becomes::RebuildShrink),
];

/// Names of what becomes of messages: whether they go on.
pub const MESSAGES: [(&str, bool); 2] = [("nop", false), ("cont", true)];

/// The name of the closing barrier of collective calls.
pub const STRICT: &str = "strict";

const MESSAGES_GO_ON: u64 = 1 << 8;
const IS_STRICT: u64 = 1 << 9;

impl Becomes {
    /// As programs have it (`FTMPI_COMM_MODE_*`).
    pub const fn number(self) -> u64 {
        match self {
            Becomes::Abort => 0,
            Becomes::Blank => 1,
            Becomes::Shrink => 2,
            Becomes::Rebuild => 3,
            Becomes::RebuildShrink => 4,
        }
    }

    /// New ranks come for those that have failed.
    pub const fn is_filled(self) -> bool {
        matches!(self, Becomes::Rebuild | Becomes::RebuildShrink)
    }

    pub fn of_number(number: u64) -> Option<Becomes> {
        let all = NAMES.map(|(_, becomes)| becomes);
        all.into_iter().find(|becomes| becomes.number() == number)
    }
}

impl Modes {
    /// As a word of the node memory: not 0, and not [`ULFM`].
    pub const fn word(self) -> u64 {
        let messages = if self.messages_go_on { MESSAGES_GO_ON } else { 0 };
        let strict = if self.is_strict { IS_STRICT } else { 0 };
        (2 + self.becomes.number()) | messages | strict
    }

    /// None: the program deals with failures otherwise, or not at all.
    pub fn of_word(word: u64) -> Option<Modes> {
        Some(Modes {
            becomes: Becomes::of_number((word & 0xff).checked_sub(2)?)?,
            messages_go_on: word & MESSAGES_GO_ON != 0,
            is_strict: word & IS_STRICT != 0,
        })
    }

    /// The words of an option: what a communicator becomes, what becomes of messages, and whether collective calls have
    /// a closing barrier, with commas between them.
    pub fn parse(words: &str) -> Option<Modes> {
        let is_strict = words.strip_suffix(STRICT).and_then(|rest| rest.strip_suffix(','));
        let words = is_strict.unwrap_or(words);
        let (becomes, messages) = words.split_once(',').unwrap_or((words, MESSAGES[0].0));
        Some(Modes {
            becomes: NAMES.iter().find(|(name, _)| *name == becomes)?.1,
            messages_go_on: MESSAGES.iter().find(|(name, _)| *name == messages)?.1,
            is_strict: is_strict.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_names_mean_the_same() {
        for (name, becomes) in NAMES {
            for (messages, messages_go_on) in MESSAGES {
                for (strict, is_strict) in [("", false), (",strict", true)] {
                    let modes = Modes {
                        becomes,
                        messages_go_on,
                        is_strict,
                    };
                    assert_eq!(Modes::parse(&format!("{name},{messages}{strict}")), Some(modes));
                    assert_eq!(Modes::of_word(modes.word()), Some(modes));
                    assert!(modes.word() > ULFM);
                }
            }
        }
        assert_eq!(Modes::parse("shrink"), Modes::parse("shrink,nop"));
        assert_eq!(Modes::parse("blank,strict"), Modes::parse("blank,nop,strict"));
        for nonsense in [
            "",
            "shrunk",
            "strict",
            "shrink,strict,cont",
            "shrink,",
            "shrink,both",
            "nop",
        ] {
            assert_eq!(Modes::parse(nonsense), None, "{nonsense}");
        }
        assert_eq!([0, ULFM, 7, 1 << 9].map(Modes::of_word), [None; 4]);
    }
}
