//! The man pages, and all files that an installation has beside the program because of its words: `resurgo pages DIR`.

use std::ffi::OsString;
use std::path::Path;

use crate::completion::SHELLS;
use crate::help::{self, Part};
use crate::options::table::{self, Line};
use crate::say;

/// Not for users: builds call it.
pub const VERB: &str = "pages";

/// Writes the files below a `share`; returns the exit status.
pub fn run(arguments: &[OsString]) -> i32 {
    let [directory] = arguments else {
        return say::usage(&format!("{VERB} takes a directory"));
    };
    match write_all(directory.as_ref()) {
        Ok(()) => 0,
        Err(error) => say::failed(&format!("{}: {error}", directory.display())),
    }
}

fn write_all(directory: &Path) -> std::io::Result<()> {
    let write = |name: String, text: &str| {
        let file = directory.join(name);
        std::fs::create_dir_all(file.parent().unwrap_or(directory))?;
        // Others may be reading it.
        let new = file.with_added_extension(std::process::id().to_string());
        std::fs::write(&new, text)?;
        std::fs::rename(new, file)
    };
    write("man/man1/resurgo.1".to_string(), &main_page())?;
    for command in help::commands() {
        let verb = &command.verb;
        write(format!("man/man1/resurgo-{verb}.1"), &page(verb, &command.text))?;
    }
    for (shell, script) in SHELLS {
        let place = match shell {
            "bash" => "bash-completion/completions/resurgo",
            "zsh" => "zsh/site-functions/_resurgo",
            _ => "fish/vendor_completions.d/resurgo.fish",
        };
        write(place.to_string(), script)?;
    }
    Ok(())
}

/// Text that means the same to roff.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

fn head(name: &str, about: &str) -> String {
    let (title, name, about) = (plain(&name.to_uppercase()), plain(name), plain(about));
    let version = env!("CARGO_PKG_VERSION");
    format!(".TH {title} 1 \"\" \"Resurgo {version}\" \"Resurgo\"\n.SH NAME\n{name} \\- {about}\n")
}

fn paragraph(text: &str) -> String {
    format!(".PP\n{}\n", plain(text))
}

/// A term and its meaning, of which each line begins anew.
fn item(term: &str, text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(plain).collect();
    format!(".TP\n.B {}\n{}\n", plain(term), lines.join("\n.br\n"))
}

/// Begins a section when the first part of its kind comes.
fn begin(section: &mut &str, wanted: &'static str) -> String {
    match std::mem::replace(section, wanted) == wanted {
        true => String::new(),
        false => format!(".SH {wanted}\n"),
    }
}

/// The parts of a text, in their sections.
fn body(parts: &[Part]) -> String {
    const STATUS: &str = "Exit status: ";
    let (mut section, mut text) = ("", String::new());
    for part in parts {
        text += &match part {
            Part::Synopsis(line) => format!("{}.B {}\n.br\n", begin(&mut section, "SYNOPSIS"), plain(line)),
            Part::Text(line) if line.starts_with(STATUS) => {
                begin(&mut section, "EXIT STATUS") + &paragraph(&line[STATUS.len()..])
            }
            Part::Text(line) if section == "OPTIONS" => paragraph(line),
            Part::Text(line) => begin(&mut section, "DESCRIPTION") + &paragraph(line),
            Part::Item(of) if of.term.starts_with('-') => begin(&mut section, "OPTIONS") + &item(&of.term, &of.text),
            Part::Item(of) if of.term.starts_with("resurgo ") => {
                begin(&mut section, "SYNOPSIS") + &item(&of.term, &of.text)
            }
            Part::Item(of) => item(&of.term, &of.text),
        };
    }
    text
}

/// The options of `resurgo run`, in their sections.
fn options() -> String {
    let shown = |line: &Line| {
        let names: Vec<&str> = line.names().filter(|name| !name.is_empty()).collect();
        let mut text = line.help.to_string();
        if !line.default.is_empty() {
            text += &format!("\nDefault: {}.", line.default);
        }
        if let Some(variable) = line.variable() {
            text += &format!("\nEnvironment: {variable}.");
        }
        item(format!("{} {}", names.join(", "), line.values).trim_end(), &text)
    };
    let section = |section: &table::Section| {
        let lines: String = section.lines.iter().map(shown).collect();
        format!(".SS {}\n{lines}", plain(section.title))
    };
    table::SECTIONS.iter().map(section).collect()
}

/// The page of a command.
fn page(verb: &str, about: &str) -> String {
    let mut text = head(&format!("resurgo-{verb}"), about);
    if verb == "run" {
        let (above, below) = help::around_options();
        text += &body(&above);
        text += &format!(".SH OPTIONS\n{}.SH NOTES\n", options());
        for part in &below {
            text += &body(std::slice::from_ref(part)).replace(".SH DESCRIPTION\n", "");
        }
    } else {
        text += &body(&help::parts(verb));
    }
    text + ".SH SEE ALSO\n.BR resurgo (1)\n"
}

fn main_page() -> String {
    let mut text = head(
        "resurgo",
        "run MPI programs so that crashed processes do not end the job",
    );
    text += ".SH SYNOPSIS\n.B resurgo\n.I command\n[arguments]\n.br\n.B resurgo \\-\\-version\n.SH DESCRIPTION\n";
    for part in help::introduction() {
        if let Part::Text(line) = part {
            text += &paragraph(&line);
        }
    }
    text += ".SH COMMANDS\n";
    let commands = help::commands();
    for command in &commands {
        text += &item(&command.synopsis, &command.text);
    }
    let pages: Vec<String> = commands
        .iter()
        .map(|command| format!(".BR {} (1)", plain(&format!("resurgo-{}", command.verb))))
        .collect();
    format!("{text}.SH SEE ALSO\n{}\n", pages.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_on_the_page_of_run() {
        let page = page("run", "about");
        for line in table::options() {
            for name in line.names() {
                assert!(page.contains(&plain(name)), "{name}");
            }
        }
        assert!(page.contains("\nEnvironment: RESURGO_PROTOCOL.\n") && page.contains(".SH EXIT STATUS\n"));
        assert!(page.starts_with(".TH RESURGO\\-RUN 1 \"\" \"Resurgo "));
    }

    #[test]
    fn pages_have_their_sections() {
        let page = page("checkpoint", "take images");
        let order = ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"];
        let found: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        assert_eq!(found, order);
        assert!(!page.contains("Exit status: "));
        assert_eq!(plain(".a -b \\ 'c'"), "\\&.a \\-b \\e 'c'");
    }
}
