//! Configuration files: options of `resurgo run` that hold for all jobs of a machine, an installation, or a user; and
//! `resurgo config`, which prints what is in force.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use resurgo_runtime::suspended::Configured;
use serde_json::{Value, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::options::configured::{self, configurable};
use crate::options::table::Line;
use crate::options::{self, Request};
use crate::say;
use crate::text_file;

/// Below `/etc`, `PREFIX/etc` and the user's own directory.
const NAME: &str = "resurgo/config.toml";
/// The longest file that is accepted, in bytes.
const LONGEST: u64 = 1 << 20;
const BY_OTHERS: u32 = 0o002;

/// A place where a file may be, and the users to whom it may belong.
struct Place {
    path: PathBuf,
    owners: Vec<u32>,
}

/// What the files say: an entry for each option, of the last file that has it.
#[derive(Default)]
struct Files {
    entries: Vec<Configured>,
    /// All places, with whether there is a file.
    seen: Vec<(PathBuf, bool)>,
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The places, the least important one first.
fn places() -> Vec<Place> {
    let exe = std::env::current_exe().ok();
    let owner = exe
        .as_ref()
        .and_then(|exe| exe.metadata().ok())
        .map(|about| about.uid());
    let of_site: Vec<u32> = owner.into_iter().chain([0]).collect();
    let mut places = vec![Path::new("/etc").join(NAME)];
    // A binary in /bin has its prefix at /.
    let prefix = exe.as_deref().and_then(Path::parent).and_then(Path::parent);
    let installed = prefix.map(|prefix| prefix.join("etc").join(NAME));
    places.extend(installed.filter(|path| !places.contains(path)));
    let own = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    let own = own.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
    let own = own.map(|directory| Place {
        path: directory.join(NAME),
        owners: vec![geteuid().as_raw(), 0],
    });
    let of_site = |path| Place {
        path,
        owners: of_site.clone(),
    };
    places.into_iter().map(of_site).chain(own).collect()
}

/// Reads a command line, with the environment and the configuration files of this process. Also returns what the files
/// say.
pub fn parse(arguments: Vec<OsString>) -> Result<(Request, Vec<Configured>), String> {
    let files = match options::wants_files(&arguments, variable)? {
        true => read_all(places())?,
        false => Files::default(),
    };
    let request = options::parse(arguments, &files.entries, variable)?;
    Ok((request, files.entries))
}

fn read_all(places: Vec<Place>) -> Result<Files, String> {
    let mut files = Files::default();
    for place in places {
        let entries = read(&place)?;
        files.seen.push((place.path, entries.is_some()));
        for entry in entries.into_iter().flatten() {
            files.entries.retain(|other| other.option != entry.option);
            files.entries.push(entry);
        }
    }
    Ok(files)
}

/// The entries of a file. None: there is no file.
fn read(place: &Place) -> Result<Option<Vec<Configured>>, String> {
    let path = &place.path;
    let shown = path.display();
    // What cannot be seen is somebody else's.
    if path.symlink_metadata().is_err_and(|error| {
        [
            ErrorKind::NotFound,
            ErrorKind::NotADirectory,
            ErrorKind::PermissionDenied,
        ]
        .contains(&error.kind())
    }) {
        return Ok(None);
    }
    let is_trusted = |about: &Metadata| trusted(about, &place.owners);
    let failed = |why: String| format!("{shown}: {why}; --no-config leaves it out");
    let bytes = text_file::read_if(path, LONGEST, is_trusted).map_err(failed)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = line_of(error.as_bytes(), error.utf8_error().valid_up_to());
        format!("{shown}:{line}: not UTF-8")
    })?;
    let entries = entries(&text).map_err(|(at, why)| format!("{shown}:{}: {why}", line_of(text.as_bytes(), at)))?;
    let entries: Vec<Configured> = entries
        .into_iter()
        .map(|(at, option, values)| Configured {
            option: option.to_string(),
            values,
            place: format!("{shown}:{}", line_of(text.as_bytes(), at)),
        })
        .collect();
    configured::check(&entries)?;
    Ok(Some(entries))
}

/// Whether a file belongs to one of these users, and nobody else may write to it.
fn trusted(about: &Metadata, owners: &[u32]) -> Result<(), String> {
    if !owners.contains(&about.uid()) {
        let users: Vec<String> = owners.iter().map(u32::to_string).collect();
        let owner = about.uid();
        return Err(format!(
            "it belongs to user {owner}, and not to user {}",
            users.join(" or ")
        ));
    }
    match about.mode() & BY_OTHERS {
        0 => Ok(()),
        _ => Err("all users may write to it; chmod o-w it".to_string()),
    }
}

/// The number of the line with this byte, from 1.
fn line_of(text: &[u8], at: usize) -> usize {
    1 + text[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

type Entry = (usize, &'static str, Vec<String>);

/// The options in a file, with their places in it; or what is wrong, and where.
fn entries(text: &str) -> Result<Vec<Entry>, (usize, String)> {
    let start = |span: Option<Range<usize>>| span.map_or(0, |span| span.start);
    let table = DeTable::parse(text).map_err(|error| (start(error.span()), error.message().replace('\n', " ")))?;
    let mut found: Vec<Entry> = Vec::new();
    for (key, value) in table.into_inner() {
        let at = key.span().start;
        let wrong = |why: String| (at, why);
        if matches!(value.get_ref(), DeValue::Table(_)) {
            return Err(wrong(format!(
                "options stand in no table: write {key} = VALUE",
                key = key.get_ref()
            )));
        }
        let line = configured::option(key.get_ref()).map_err(wrong)?;
        let name = line.words().next().unwrap_or_default();
        if found.iter().any(|(_, other, _)| *other == name) {
            return Err(wrong(format!("{name} is given twice, by another of its names")));
        }
        let values = values(line, &value).map_err(|why| wrong(format!("{}: {why}", key.get_ref())))?;
        found.push((at, name, values));
    }
    found.sort_by_key(|(at, ..)| *at);
    Ok(found)
}

/// The values of an option, as the command line would have them.
fn values(line: &Line, value: &Spanned<DeValue>) -> Result<Vec<String>, String> {
    if line.is_switch() {
        return match value.get_ref() {
            DeValue::Boolean(is_on) => Ok(vec![u8::from(*is_on).to_string()]),
            _ => Err("write true or false".to_string()),
        };
    }
    let all = match value.get_ref() {
        DeValue::Array(all) if configured::has_several(line) => all.iter().collect(),
        DeValue::Array(_) => return Err("takes one value, and no list".to_string()),
        _ => vec![value],
    };
    let is_path = ["DIR", "FILE", "PATH"].contains(&line.values);
    let text = |value: &Spanned<DeValue>| match value.get_ref() {
        DeValue::String(text) if is_path && text.starts_with('~') => {
            Err("the ~ means nothing here: write the whole path".to_string())
        }
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_string()),
        _ => Err("write a text in quotes, or a number".to_string()),
    };
    all.into_iter().map(text).collect()
}

/// An option that has a value, and where that comes from.
struct InForce {
    line: &'static Line,
    values: Vec<String>,
    from: &'static str,
    place: Option<String>,
}

impl InForce {
    fn name(&self) -> &'static str {
        self.line.words().next().unwrap_or_default()
    }

    /// As JSON, which is TOML here.
    fn value(&self) -> Value {
        match &self.values[..] {
            [value] if self.line.is_switch() => Value::Bool(!["0", "no", "false"].contains(&value.as_str())),
            [value] if !configured::has_several(self.line) => json!(value),
            values => json!(values),
        }
    }
}

fn in_force(files: &Files) -> Vec<InForce> {
    let of = |line: &'static Line| {
        let entry = files.entries.iter().find(|entry| line.is(&entry.option));
        let (values, from, place) = if let Some(value) = configured::of_environment(line, variable) {
            let value = value.to_string_lossy().into_owned();
            let values = match configured::has_several(line) && !line.is("store") {
                true => value.split(';').map(str::to_string).collect(),
                false => vec![value],
            };
            (values, "environment", line.variable())
        } else if let Some(entry) = entry {
            (entry.values.clone(), "file", Some(entry.place.clone()))
        } else if !line.default.is_empty() {
            (vec![line.default.to_string()], "default", None)
        } else {
            return None;
        };
        Some(InForce {
            line,
            values,
            from,
            place,
        })
    };
    configurable().filter_map(of).collect()
}

/// `resurgo config`; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let (mut as_json, mut words) = (false, vec![OsString::from("--"), "true".into()]);
    for argument in arguments {
        match argument.to_str() {
            Some("--json") => as_json = true,
            Some("--no-config") => words.insert(0, argument),
            _ => {
                let word = argument.display();
                return say::usage(&format!(
                    "config takes no arguments but --json and --no-config, not {word:?}"
                ));
            }
        }
    }
    let read = || {
        let mut set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
        set.try_for_each(|(name, _)| options::check_variable(&name.to_string_lossy()))?;
        match options::wants_files(&words, variable)? {
            true => read_all(places()),
            false => Ok(Files::default()),
        }
    };
    match read() {
        Ok(files) => {
            let text = if as_json { as_object(&files) } else { as_text(&files) };
            say::print(&text);
            0
        }
        Err(why) => say::usage(&why),
    }
}

/// What is printed can be a configuration file itself.
fn as_text(files: &Files) -> String {
    let mut text = String::new();
    for (path, is_there) in &files.seen {
        let state = if *is_there { "read" } else { "not there" };
        text += &format!("# {}: {state}\n", path.display());
    }
    if files.seen.is_empty() {
        text += "# no files are read\n";
    }
    for option in in_force(files) {
        let setting = format!("{} = {}", option.name(), option.value());
        let from = option.place.as_deref().unwrap_or(option.from);
        text += &format!("{setting:<44}  # {from}\n");
    }
    text
}

fn as_object(files: &Files) -> String {
    let seen = files
        .seen
        .iter()
        .map(|(path, is_there)| json!({ "path": path.to_string_lossy(), "is_read": is_there }));
    let options = in_force(files).into_iter().map(|option| {
        json!({ "option": option.name(), "value": option.value(), "from": option.from, "place": option.place })
    });
    let (seen, options): (Vec<Value>, Vec<Value>) = (seen.collect(), options.collect());
    format!("{}\n", json!({ "files": seen, "options": options }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<(usize, &'static str, String)>, String> {
        let shown = |(at, name, values): Entry| (line_of(text.as_bytes(), at), name, values.join(" "));
        let wrong = |(at, why)| format!("{}: {why}", line_of(text.as_bytes(), at));
        entries(text)
            .map(|all| all.into_iter().map(shown).collect())
            .map_err(wrong)
    }

    #[test]
    fn options_are_read_with_their_lines() {
        let text = "# for all\nprotocol = \"causal\"\n\ncheckpoint-every = 300\nquiet = true\nstats = false\n\
                    checkpoint-share = 2.5\nstore = [\n  \"dir:/a\",\n  \"dir:/b\",\n]\niface = 'ib0'\n";
        let expected = [
            (2, "protocol", "causal"),
            (4, "checkpoint-every", "300"),
            (5, "quiet", "1"),
            (6, "stats", "0"),
            (7, "checkpoint-share", "2.5"),
            (8, "store", "dir:/a dir:/b"),
            (12, "interface", "ib0"),
        ];
        let expected = expected.map(|(line, name, value)| (line, name, value.to_string()));
        assert_eq!(of(text).unwrap(), expected);
        assert_eq!(of("").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, expected) in [
            (
                "\ncheckpoint-evry = 3",
                "2: unknown option checkpoint-evry; did you mean checkpoint-every?",
            ),
            (
                "checkpoint_every = 3",
                "1: unknown option checkpoint_every; did you mean checkpoint-every?",
            ),
            ("colour = 3", "1: unknown option colour; resurgo config lists them"),
            ("n = 4", "1: -n belongs on the command line"),
            ("q = true", "1: q is short for quiet: write that"),
            ("no-config = true", "1: --no-config belongs on the command line"),
            ("quiet = \"yes\"", "1: quiet: write true or false"),
            ("grace = [\"1s\", \"2s\"]", "1: grace: takes one value, and no list"),
            ("grace = true", "1: grace: write a text in quotes, or a number"),
            ("grace = 2026-01-01", "1: grace: write a text in quotes, or a number"),
            (
                "spill-dir = \"~/x\"",
                "1: spill-dir: the ~ means nothing here: write the whole path",
            ),
            ("[run]\ngrace = 1", "1: options stand in no table: write run = VALUE"),
            (
                "interface = \"a\"\niface = \"b\"",
                "1: interface is given twice, by another of its names",
            ),
        ] {
            assert_eq!(of(text).unwrap_err(), expected, "{text}");
        }
        assert!(of("grace = 1\ngrace = 2").unwrap_err().starts_with("2: duplicate key"));
        assert!(of("a = \n").is_err() && of("x").is_err());
    }

    #[test]
    fn a_file_of_others_is_not_read() {
        let path = std::env::temp_dir().join(format!("resurgo-configuration-{}", std::process::id()));
        std::fs::write(&path, "grace = \"0s\"\nquiet = true\n").unwrap();
        let own = geteuid().as_raw();
        let of = |owners: Vec<u32>| {
            let path = path.clone();
            read(&Place { path, owners }).map(|entries| entries.map(|entries| entries.len()))
        };
        assert_eq!(of(vec![own]), Ok(Some(2)));
        let error = of(vec![own + 1]).unwrap_err();
        assert!(
            error.contains(&format!("belongs to user {own}, and not to user {}", own + 1)),
            "{error}"
        );
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(of(vec![own]).unwrap_err().contains("all users may write to it"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "# \ngrace = \"long\"\n").unwrap();
        assert!(of(vec![own]).unwrap_err().contains(":2: grace: "));
        std::fs::write(&path, b"\n\xff\n").unwrap();
        assert!(of(vec![own]).unwrap_err().ends_with(":2: not UTF-8"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(of(vec![own]), Ok(None));
    }
}
