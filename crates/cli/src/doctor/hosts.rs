//! `resurgo doctor --hosts FILE`: whether jobs could run on these hosts, without running one.

use std::ffi::OsString;

use resurgo_runtime::dispatcher::examine::{self, Examined};
use serde_json::json;

use crate::check::Refusal;
use crate::configuration;
use crate::hosts;
use crate::options::Request;

/// The arguments of `resurgo doctor` as options of `resurgo run` and the words of a program. None: they name no hosts.
pub fn asked(words: &[OsString]) -> Option<(Vec<OsString>, Vec<OsString>)> {
    let mut options: Vec<OsString> = Vec::new();
    let mut words = words.iter();
    let mut program: Vec<OsString> = Vec::new();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if !text.starts_with('-') {
            program.push(word.clone());
            program.extend(words.cloned());
            break;
        }
        match text.strip_prefix("--hosts") {
            Some("") => options.push("-f".into()),
            Some(file) if file.starts_with('=') => options.push(format!("-f{file}").into()),
            _ => options.push(word.clone()),
        }
        if !text.contains('=') {
            options.extend(words.next().cloned());
        }
    }
    (!options.is_empty()).then_some((options, program))
}

/// Examines the hosts; returns the exit status and the text to print. `files`: what must be the same everywhere.
pub fn run(mut words: Vec<OsString>, mut files: Vec<OsString>, as_json: bool) -> Result<(i32, String), Refusal> {
    let refused = |text: String| Refusal::new(2, text);
    words.extend([OsString::from("--"), "true".into()]);
    let (Request::Run(mut options), _) = configuration::parse(words).map_err(refused)? else {
        return Err(refused("doctor takes hosts and then a program".to_string()));
    };
    // Examine all of them, whatever would run there.
    options.nodes.may_miss = usize::MAX;
    options.nodes.lease = examine::LEASE;
    let here =
        std::env::current_dir().map_err(|error| refused(format!("the current directory cannot be found: {error}")))?;
    files.push(here.clone().into_os_string());
    let Some(mut cluster) = hosts::cluster(&options, &here, |name| std::env::var_os(name))? else {
        return Ok((0, shown(&[("localhost", None)], as_json)));
    };
    cluster.files = files;
    let found = examine::examine(&cluster).map_err(|text| Refusal::new(1, text))?;
    let hosts: Vec<(&str, Option<&str>)> = found.iter().map(named).collect();
    let status = i32::from(hosts.iter().any(|(_, trouble)| trouble.is_some()));
    Ok((status, shown(&hosts, as_json)))
}

fn named(host: &Examined) -> (&str, Option<&str>) {
    (&host.name, host.trouble.as_deref())
}

fn shown(hosts: &[(&str, Option<&str>)], as_json: bool) -> String {
    if as_json {
        let object = |(name, trouble): &(&str, Option<&str>)| json!({ "host": name, "ready": trouble.is_none(), "reason": trouble });
        let lines: Vec<String> = hosts.iter().map(|host| object(host).to_string()).collect();
        return format!("[{}]\n", lines.join(",\n "));
    }
    let width = hosts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, trouble): &(&str, Option<&str>)| format!("{name:width$}  {}\n", trouble.unwrap_or("ready"));
    hosts.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_come_before_the_program() {
        let asked = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            asked(&words).map(|(options, program)| {
                let text = |words: Vec<OsString>| words.join(&OsString::from(" ")).into_string().unwrap();
                (text(options), text(program))
            })
        };
        let pair = |options: &str, program: &str| Some((options.to_string(), program.to_string()));
        assert_eq!(asked("./app -f x"), None);
        assert_eq!(asked("--hosts file ./app -v"), pair("-f file", "./app -v"));
        assert_eq!(asked("--hosts=file"), pair("-f=file", ""));
        assert_eq!(asked("-hosts a,b -launcher ssh"), pair("-hosts a,b -launcher ssh", ""));
    }

    #[test]
    fn each_host_has_a_line() {
        let hosts = [("n1", None), ("long", Some("is off"))];
        assert_eq!(shown(&hosts, false), "n1    ready\nlong  is off\n");
        let read: serde_json::Value = serde_json::from_str(&shown(&hosts, true)).unwrap();
        assert_eq!(
            (read[0]["ready"].as_bool(), read[1]["reason"].as_str()),
            (Some(true), Some("is off"))
        );
    }
}
