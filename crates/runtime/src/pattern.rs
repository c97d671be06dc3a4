//! Names of files, and beginnings of lines, that differ from rank to rank, as Hydra's mpiexec writes them.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::gethostname;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Rank,
    Group,
    Time,
}

/// A text with places for the parts that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<Part>);

impl Pattern {
    /// `%r`: the rank; `%g`: its process group (0: the launched ranks; those that are spawned have the next ones); `%p`: the
    /// proxy, which is 0 as there is one node; `%h`: the host; `%t`: seconds since 1970; `%%`: a percent sign.
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
                    Some('p') => Part::Text("0".to_string()),
                    Some('h') => Part::Text(host()),
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

    /// The text of a rank. `worlds`: the first rank of each spawned group.
    pub fn of(&self, rank: usize, worlds: &[usize], seconds: u64) -> String {
        let group = worlds.iter().filter(|first| **first <= rank).count();
        let parts = self.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Rank => rank.to_string(),
            Part::Group => group.to_string(),
            Part::Time => seconds.to_string(),
        });
        parts.collect()
    }
}

fn host() -> String {
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
        let of = |text: &str, rank: usize| Pattern::parse(text).unwrap().of(rank, &[4, 6], 7);
        assert_eq!(of("out.%r.%g.%p", 3), "out.3.0.0");
        assert_eq!(of("%g/%r", 5), "1/5");
        assert_eq!(of("%g/%r%%%t", 6), "2/6%7");
        assert_eq!(of("%h", 0), host());
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
