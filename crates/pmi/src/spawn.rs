//! `mcmd=spawn`: MPI_Comm_spawn_multiple as the client sends it, one part for each program.

use serde::{Deserialize, Serialize};

use crate::line::Command;

/// Keys that every part has once.
const SINGLE: [&str; 7] = [
    "nprocs",
    "execname",
    "totspawns",
    "spawnssofar",
    "argcnt",
    "preput_num",
    "info_num",
];

/// One program of a spawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnProgram {
    pub ranks: usize,
    /// As the caller wrote it: a path, or a name to be searched for.
    pub name: String,
    pub arguments: Vec<String>,
    /// The caller's info keys and values.
    pub info: Vec<(String, String)>,
}

/// The parts of a spawn that have come so far.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    pub programs: Vec<SpawnProgram>,
    /// What the new world's key-value space holds from its beginning.
    pub preputs: Vec<(String, String)>,
}

impl Spawn {
    /// Takes the next part; true when it is the last one. An error says what is wrong with it.
    pub fn add(&mut self, part: &Command) -> Result<bool, String> {
        let number = |key: &str| -> Result<usize, String> {
            let value = part.get(key).ok_or_else(|| format!("a spawn without {key}"))?;
            value
                .parse()
                .map_err(|_| format!("a spawn with {key}={value:?}, which is no number"))
        };
        let pairs = |count: &str, name: &str, value: &str| -> Result<Vec<(String, String)>, String> {
            let count = if part.get(count).is_some() { number(count)? } else { 0 };
            let text = |key: String| part.get(&key).map(str::to_string).ok_or(key);
            (0..count)
                .map(|index| Ok((text(format!("{name}{index}"))?, text(format!("{value}{index}"))?)))
                .collect::<Result<_, String>>()
                .map_err(|key| format!("a spawn without {key}"))
        };
        let (all, so_far) = (number("totspawns")?, number("spawnssofar")?);
        if so_far != self.programs.len() + 1 || so_far > all {
            return Err(format!(
                "part {so_far} of {all} of a spawn after {} others",
                self.programs.len()
            ));
        }
        // Arguments count from 1.
        let arguments = (1..=number("argcnt")?)
            .map(|index| part.get(&format!("arg{index}")).map(str::to_string))
            .collect::<Option<_>>()
            .ok_or("a spawn with fewer arguments than it says")?;
        let preputs = pairs("preput_num", "preput_key_", "preput_val_")?;
        let program = SpawnProgram {
            ranks: number("nprocs")?,
            name: part.get("execname").ok_or("a spawn without execname")?.to_string(),
            arguments,
            info: pairs("info_num", "info_key_", "info_val_")?,
        };
        let counted = SINGLE.iter().filter(|key| part.get(key).is_some()).count();
        if part.len() != counted + program.arguments.len() + 2 * (preputs.len() + program.info.len()) {
            return Err("a spawn with lines too many: PMI cannot carry line breaks in arguments".to_string());
        }
        self.preputs.extend(preputs);
        self.programs.push(program);
        Ok(so_far == all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::LineBuffer;

    fn add(spawn: &mut Spawn, part: &str) -> Result<bool, String> {
        let mut buffer = LineBuffer::default();
        buffer.extend(format!("mcmd=spawn\n{part}\nendcmd\n").as_bytes());
        spawn.add(&buffer.next_command().unwrap().unwrap())
    }

    #[test]
    fn the_parts_of_a_spawn_are_put_together() {
        let mut spawn = Spawn::default();
        // As MPICH 5.0.2 sends it.
        let first = "nprocs=2\nexecname=./a b\ntotspawns=2\nspawnssofar=1\nargcnt=2\narg1=x y\narg2=\npreput_num=1\n\
                     preput_key_0=PARENT_ROOT_PORT_NAME\npreput_val_0=tag#0$connentry#00$\ninfo_num=1\n\
                     info_key_0=wdir\ninfo_val_0=/tmp/with space";
        assert_eq!(add(&mut spawn, first), Ok(false));
        assert_eq!(
            add(
                &mut spawn,
                "nprocs=1\nexecname=b\ntotspawns=2\nspawnssofar=2\nargcnt=0\ninfo_num=0"
            ),
            Ok(true)
        );
        assert_eq!(
            spawn.preputs,
            [("PARENT_ROOT_PORT_NAME".to_string(), "tag#0$connentry#00$".to_string())]
        );
        assert_eq!(spawn.programs[0].name, "./a b");
        assert_eq!(spawn.programs[0].arguments, ["x y", ""]);
        assert_eq!(
            spawn.programs[0].info,
            [("wdir".to_string(), "/tmp/with space".to_string())]
        );
        assert_eq!((spawn.programs[1].ranks, spawn.programs[1].name.as_str()), (1, "b"));
    }

    #[test]
    fn what_is_incomplete_is_refused() {
        for part in [
            "",
            "nprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=2\nargcnt=0",
            "nprocs=x\nexecname=a\ntotspawns=1\nspawnssofar=1\nargcnt=0",
            "nprocs=1\ntotspawns=1\nspawnssofar=1\nargcnt=0",
            "nprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\nargcnt=99999999999\narg1=x",
            "nprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\nargcnt=1\narg1=two\nlines",
            "nprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\nargcnt=1\narg1=two\narg2=lines",
            "nprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\nargcnt=0\ninfo_num=1\ninfo_key_0=wdir",
        ] {
            assert!(add(&mut Spawn::default(), part).is_err(), "{part}");
        }
    }
}
