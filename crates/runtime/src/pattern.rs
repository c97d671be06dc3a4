//! Names of files, and beginnings of lines, that differ from rank to rank, as Hydra's mpiexec writes them.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::gethostname;

/// Where a rank runs: the number of the node, and the host's name.
pub type Home = (u32, String);

/// What differs from rank to rank in a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranks {
    /// The first rank of each spawned group.
    pub worlds: Vec<usize>,
    /// Of each rank. Those beyond run on this machine, which is node 0.
    pub homes: Vec<Home>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Rank,
    Group,
    Node,
    /// With the name of this machine.
    Host(String),
    Time,
}

/// A text with places for the parts that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<Part>);

impl Pattern {
    /// `%r`: the rank; `%g`: its process group (0: the launched ranks; those that are spawned have the next ones); `%p`: the
    /// proxy, which is the number of its node; `%h`: its host; `%t`: seconds since 1970; `%%`: a percent sign.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            let part = match letter {
                '%' => match letters.next() {
                    Some('r') => Part::Rank,
                    Some('g') => Part::Group,
                    Some('t') => Part::Time,
                    Some('p') => Part::Node,
                    Some('h') => Part::Host(this_machine()),
                    Some('%') => Part::Text("%".to_string()),
                    other => {
                        let other = other.map(String::from).unwrap_or_default();
                        return Err(format!(
                            "{text:?}: there is no %{other}; there are %r (rank), %g (process group), %p (proxy), %h (host), \
                             %t (time) and %%"
                        ));
                    }
                },
                _ => {
                    plain.push(letter);
                    continue;
                }
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(part);
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Pattern(parts))
    }

    /// The prefix of `-l`.
    pub fn label() -> Pattern {
        let text = |text: &str| Part::Text(text.to_string());
        Pattern(vec![text("["), Part::Rank, text("] ")])
    }

    /// Whether its texts depend on where ranks run.
    pub fn names_nodes(&self) -> bool {
        let is_about_nodes = |part: &Part| matches!(part, Part::Node | Part::Host(_));
        self.0.iter().any(is_about_nodes)
    }

    /// The text of a rank.
    pub fn of(&self, rank: usize, ranks: &Ranks, seconds: u64) -> String {
        let group = ranks.worlds.iter().filter(|first| **first <= rank).count();
        let home = ranks.homes.get(rank);
        let parts = self.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Rank => rank.to_string(),
            Part::Group => group.to_string(),
            Part::Node => home.map_or(0, |(node, _)| *node).to_string(),
            Part::Host(this_machine) => home.map_or(this_machine, |(_, host)| host).clone(),
            Part::Time => seconds.to_string(),
        });
        parts.collect()
    }
}

/// What this machine calls itself.
pub fn this_machine() -> String {
    gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Now, in seconds since 1970.
pub fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_filled_in() {
        let ranks = Ranks {
            worlds: vec![4, 6],
            homes: vec![(0, "n1".to_string()), (1, "n2".to_string())],
        };
        let of = |text: &str, rank: usize| Pattern::parse(text).unwrap().of(rank, &ranks, 7);
        assert_eq!(of("out.%r.%g.%p", 3), "out.3.0.0");
        assert_eq!(of("%g/%r", 5), "1/5");
        assert_eq!(of("%g/%r%%%t", 6), "2/6%7");
        assert_eq!(of("%h.%p", 1), "n2.1");
        assert_eq!(of("%h.%p", 2), format!("{}.0", this_machine()));
        assert!(Pattern::parse("a.%h").unwrap().names_nodes() && !Pattern::parse("%r%%h").unwrap().names_nodes());
        assert_eq!(Pattern::label(), Pattern::parse("[%r] ").unwrap());
        assert_eq!(of("", 0), "");
    }

    #[test]
    fn what_there_is_not_is_said() {
        for text in ["a%q", "a%"] {
            let error = Pattern::parse(text).unwrap_err();
            assert!(error.contains("%r (rank)"), "{error}");
        }
    }
}
