//! The `resurgo` command.

mod addresses;
mod advise;
mod batch;
mod bench;
mod check;
mod checkpoint_server;
mod clock;
mod completion;
mod configuration;
mod console;
mod demo;
mod diagnosis;
mod doctor;
mod environment;
mod fetch;
mod help;
mod host_names;
mod hosts;
mod image;
mod jobs;
mod join;
mod looking;
mod near;
mod options;
mod pages;
mod program;
mod progress;
mod run;
mod say;
mod site;
mod slurm;
mod spawn;
mod state;
mod store;
mod stored;
mod suspend;
mod text_file;
mod top;
mod trace;
mod version;
mod web;

use std::ffi::OsString;
use std::process::ExitCode;

use resurgo_wire::control::{AGENT, HELPER, INVITED, KEPT, STORE_SERVER};

/// What may follow `resurgo`.
const VERBS: [&str; 27] = [
    "run",
    "doctor",
    "bench",
    "demo",
    "advise",
    "trace",
    "image",
    "ps",
    "top",
    "web",
    "console",
    "checkpoint",
    "suspend",
    "resume",
    "kill",
    "rm",
    "join",
    "add-host",
    "remove-host",
    "drain",
    "ft",
    "store",
    "config",
    "completion",
    "checkpoint-server",
    "help",
    "version",
];

fn main() -> ExitCode {
    resurgo_image::hear_of_children();
    let mut arguments = std::env::args_os().skip(1);
    let verb = arguments.next().unwrap_or_default();
    let rest: Vec<OsString> = arguments.collect();
    match verb.to_str() {
        // The other commands find out themselves where their own options end.
        Some(
            verb @ ("ps" | "top" | "web" | "console" | "checkpoint" | "suspend" | "kill" | "rm" | "image" | "join"
            | "add-host" | "remove-host" | "drain" | "ft" | "store" | "checkpoint-server" | "advise" | "trace"
            | "config" | "completion" | "demo" | "version"),
        ) if rest.iter().any(|word| word == "--help" || word == "-h") => code(help::print(verb)),
        Some("run") => code(run::run(rest)),
        Some("doctor") => code(doctor::run(rest)),
        Some("demo") => code(demo::run(rest)),
        Some("bench") => code(bench::run(rest)),
        Some("advise") => code(advise::run(rest)),
        Some("trace") => code(trace::run(rest)),
        Some("join") => code(join::run(rest)),
        Some("add-host") => code(jobs::add_host(rest)),
        Some("remove-host") => code(jobs::drain("remove-host", rest)),
        Some("drain") => code(jobs::drain("drain", rest)),
        Some("ps") if state::is_meant(&rest) => code(state::ps("ps", rest)),
        Some("ps") => code(jobs::ps(rest)),
        Some("top") => code(top::run(rest)),
        Some("web") => code(web::run(rest)),
        Some("console") => code(console::run(rest)),
        Some("ft") => code(jobs::ft(rest)),
        Some("checkpoint") => code(jobs::checkpoint(rest)),
        Some("suspend") => code(jobs::suspend(rest)),
        Some("resume") => code(suspend::resume(rest)),
        Some("kill") => code(jobs::kill(rest)),
        Some("rm") => code(jobs::rm(rest)),
        Some(AGENT) if rest.first().is_some_and(|word| word == KEPT) => {
            let node = rest.get(1).and_then(|node| node.to_str()?.parse().ok());
            code(resurgo_runtime::agent::kept::run(node))
        }
        Some(AGENT) if rest == [STORE_SERVER] => code(resurgo_runtime::store_server::run()),
        Some(AGENT) if rest == [HELPER] => code(resurgo_runtime::helper::run()),
        Some(AGENT) => code(resurgo_runtime::agent::run(rest == [INVITED])),
        Some(resurgo_runtime::notifier::VERB) => code(resurgo_runtime::notifier::run()),
        Some(resurgo_runtime::event_logger::VERB) => code(resurgo_runtime::event_logger::run()),
        Some(resurgo_runtime::channel_memory::VERB) => code(resurgo_runtime::channel_memory::run()),
        Some(resurgo_runtime::trampoline::VERB) => code(resurgo_runtime::trampoline::rank_exec(rest)),
        Some(resurgo_runtime::trampoline::RESTORE_VERB) => code(resurgo_runtime::trampoline::rank_restore(rest)),
        Some(resurgo_runtime::place_holder::VERB) => code(resurgo_runtime::place_holder::run(&rest)),
        Some("image") => code(image::run(rest)),
        Some("store") => code(store::run(rest)),
        Some("checkpoint-server") => code(checkpoint_server::run(rest)),
        Some("-h" | "--help" | "help") => {
            let about = rest.first().map(|word| word.to_string_lossy());
            code(help::print(about.as_deref().unwrap_or_default()))
        }
        Some("completion") => code(completion::run(rest)),
        Some(completion::VERB) => code(completion::print_words(&rest)),
        Some(pages::VERB) => code(pages::run(&rest)),
        Some("config") => code(configuration::run(rest)),
        Some("-V" | "--version" | "version") => code(version::run(&rest)),
        Some("") => {
            eprint!("{}", help::all());
            ExitCode::from(check::USAGE)
        }
        _ => {
            let near = near::nearest(&verb.to_string_lossy(), &VERBS).unwrap_or("--help");
            eprintln!(
                "resurgo: there is no {:?}; did you mean \"resurgo {near}\"?",
                verb.display()
            );
            ExitCode::from(check::USAGE)
        }
    }
}

fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
