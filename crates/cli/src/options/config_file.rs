//! `-configfile FILE`: the programs of a job, one a line, as they would stand on the command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::table;
use super::written::split;
use crate::text_file;

/// The longest file that is accepted, in bytes.
const LONGEST: u64 = 1 << 20;

/// The command line with the file's content in place of the option; unchanged if there is no such option.
pub fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let mut expanded = Vec::with_capacity(arguments.len());
    let mut words = arguments.into_iter().peekable();
    while let Some(word) = words.next_if(|word| word.as_encoded_bytes().starts_with(b"-") && word != "--") {
        let (name, attached) = split(word.to_str().unwrap_or_default());
        let values = table::find(name).map_or(0, table::Line::value_count);
        if name != "configfile" {
            let missing = values.saturating_sub(usize::from(attached.is_some()));
            expanded.push(word);
            expanded.extend(words.by_ref().take(missing));
            continue;
        }
        let shown = word.display();
        let file = match attached {
            Some(file) => OsString::from(file),
            None => words
                .next()
                .ok_or_else(|| format!("{shown} needs the name of a file"))?,
        };
        if let Some(next) = words.next() {
            return Err(format!(
                "{shown} names all programs of the job: {} must not follow it",
                next.display()
            ));
        }
        expanded.extend(programs(&file).map_err(|why| format!("{shown} {}: {why}", file.display()))?);
        return Ok(expanded);
    }
    expanded.extend(words);
    Ok(expanded)
}

/// Reads the file like Hydra: blanks separate words, and quotes mean nothing. `#` begins a comment line, and a `\` at
/// its end continues a line.
fn programs(file: &OsStr) -> Result<Vec<OsString>, String> {
    let text = text_file::read(file.as_ref(), LONGEST)?;
    let mut words: Vec<OsString> = Vec::new();
    let mut is_continued = false;
    for line in text.split(|byte| *byte == b'\n') {
        let mut line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if !is_continued && !words.is_empty() {
            words.push(":".into());
        }
        let continued = line.strip_suffix(b"\\");
        is_continued = continued.is_some();
        line = continued.unwrap_or(line);
        let parts = line.split(u8::is_ascii_whitespace).filter(|part| !part.is_empty());
        words.extend(parts.map(|part| OsString::from_vec(part.to_vec())));
    }
    if words.is_empty() {
        return Err("has no program".to_string());
    }
    if let Some(word) = words.iter().find(|word| word.as_bytes().contains(&0)) {
        return Err(format!(
            "is not text: {:?}",
            word.to_string_lossy().chars().take(20).collect::<String>()
        ));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<String, String> {
        let words = expand(line.split_whitespace().map(OsString::from).collect())?;
        Ok(words.join(OsStr::new(" ")).to_string_lossy().into_owned())
    }

    #[test]
    fn lines_are_programs() {
        let file = std::env::temp_dir().join(format!("resurgo-config-{}", std::process::id()));
        std::fs::write(&file, "# two\n-n 2 ./a 1 \\\n  2\n\n  -n 3 -env A 1 ./b\n").unwrap();
        let name = file.display();
        let expected = "-genv B -l -l -n 2 ./a 1 2 : -n 3 -env A 1 ./b";
        assert_eq!(of(&format!("-genv B -l -l -configfile {name}")).unwrap(), expected);
        assert_eq!(of(&format!("-genv B -l -l --configfile={name}")).unwrap(), expected);
        assert!(
            of(&format!("-configfile {name} ./c"))
                .unwrap_err()
                .contains("./c must not follow it")
        );
        // Words behind a program are the program's.
        let line = format!("-n 2 ./a -configfile {name}");
        assert_eq!(of(&line).unwrap(), line);
        std::fs::write(&file, "# nothing\n").unwrap();
        assert!(
            of(&format!("-configfile {name}"))
                .unwrap_err()
                .contains("has no program")
        );
        std::fs::remove_file(&file).unwrap();
        assert!(of(&format!("-configfile {name}")).unwrap_err().contains("No such file"));
        assert!(of("-configfile /dev/zero").unwrap_err().contains("it is a device"));
        assert!(of("-configfile").unwrap_err().contains("needs the name"));
    }
}
