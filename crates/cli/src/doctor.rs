//! `resurgo doctor`: what `resurgo run` would find out about a program, without running it.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use crate::check;
use crate::diagnosis::{self, Maker};
use crate::environment::Variables;
use crate::run;

/// Prints a line, whoever has stopped reading.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

/// Prints the diagnosis; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let Some(name) = arguments.iter().find(|argument| *argument != "--") else {
        eprintln!("resurgo: doctor needs a program; try: resurgo doctor ./program");
        return i32::from(crate::USAGE);
    };
    if name == "-h" || name == "--help" {
        return crate::help();
    }
    match examine(name) {
        Ok(()) => 0,
        Err((code, text)) => {
            eprintln!("resurgo: {text}");
            code
        }
    }
}

fn examine(name: &OsString) -> Result<(), (i32, String)> {
    let here =
        std::env::current_dir().map_err(|error| (2, format!("the current directory cannot be found: {error}")))?;
    let variables: Variables = std::env::vars_os().collect();
    let path = check::variable(&variables, "PATH");
    let file = check::find_program(name, &here, path).map_err(|refusal| (refusal.code, refusal.text))?;
    say!("program      {}", file.display());
    let diagnosis = diagnosis::diagnose(Path::new(&file), &variables).map_err(|error| (2, error))?;
    for step in &diagnosis.steps {
        say!("             {step}");
    }
    match &diagnosis.library {
        Some((Maker::Mpich, library)) => say!("MPI library  {} (MPICH with libfabric)", library.display()),
        Some((Maker::Intel, library)) => say!("MPI library  {} (Intel MPI)", library.display()),
        None => say!("MPI library  decided when it runs"),
    }
    let provider = run::provider_path().map_err(|refusal| (refusal.code, refusal.text))?;
    say!("provider     {}", provider.display());
    let mut prepared = variables.clone();
    diagnosis.prepare(&mut prepared, &provider);
    for (name, value) in prepared.iter().filter(|pair| !variables.contains(pair)) {
        say!("environment  {}={}", name.display(), value.display());
    }
    match &diagnosis.note {
        Some(note) => say!("note         {note}"),
        None => say!("protected    yes: resurgo run -n 4 {}", name.display()),
    }
    say!(
        "             one rank recovers alone if the program is repeatable: the same messages lead to the same sends (no\n             \
         measured times or unseeded random numbers in messages, one thread inside MPI); otherwise all ranks\n             \
         return to their last images, or begin again"
    );
    Ok(())
}
