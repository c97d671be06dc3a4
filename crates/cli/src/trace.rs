//! `resurgo trace report`: what a trace tells.

mod picture;
mod svg;
mod words;

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use resurgo_runtime::units::{counted, grouped, one_line, readable_size};
use resurgo_trace::report::{OfRank, Report, balance};
use serde_json::{Value, json};
use words::{seconds, time};

/// The most lines of a list.
const MOST: usize = 20;
const USAGE: &str = "what to do: resurgo trace report FILE [--json] [--picture OUT]";

/// `resurgo trace report FILE [--json] [--picture OUT]`; returns the exit status.
pub fn run(arguments: Vec<OsString>) -> i32 {
    match report(&arguments) {
        Ok(text) => {
            crate::say::print(&text);
            0
        }
        Err(reason) => {
            eprintln!("resurgo: trace: {}", one_line(&reason));
            i32::from(crate::check::USAGE)
        }
    }
}

/// What the command line says.
struct Wanted {
    file: PathBuf,
    as_json: bool,
    picture: Option<PathBuf>,
}

fn read(arguments: &[OsString]) -> Result<Wanted, String> {
    let Some((verb, rest)) = arguments.split_first() else {
        return Err(USAGE.to_string());
    };
    if verb != "report" {
        return Err(format!("there is no {:?}; {USAGE}", verb.to_string_lossy()));
    }
    let (mut file, mut as_json, mut picture) = (None, false, None);
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--json") => as_json = true,
            Some("--picture") => {
                let out = words.next().filter(|out| !out.to_string_lossy().starts_with("--"));
                let out = out.ok_or("--picture needs the file to write, as in --picture trace.svg")?;
                picture = Some(PathBuf::from(out));
            }
            Some(option) if option.starts_with("--picture=") => {
                picture = option.strip_prefix("--picture=").map(PathBuf::from);
            }
            Some(option) if option.starts_with("--") => {
                return Err(format!("there is no option {option}; {USAGE}"));
            }
            _ if file.is_none() => file = Some(PathBuf::from(word)),
            _ => return Err(format!("one file, not also {:?}", word.to_string_lossy())),
        }
    }
    let file = file.ok_or_else(|| format!("a file is missing; {USAGE}"))?;
    Ok(Wanted { file, as_json, picture })
}

fn report(arguments: &[OsString]) -> Result<String, String> {
    let wanted = read(arguments)?;
    let report = report_of(&wanted.file)?;
    if let Some(out) = &wanted.picture {
        write_picture(&report, &wanted.file, out)?;
    }
    Ok(match wanted.as_json {
        true => format!("{:#}\n", to_json(&report)),
        false => text(&report),
    })
}

/// What the trace in a file tells.
///
/// # Errors
/// It cannot be read, or it is no trace.
fn report_of(file: &Path) -> Result<Report, String> {
    let whole = |reason: String| format!("{}: {reason}", file.display());
    let bytes = std::fs::read(file).map_err(|error| whole(error.to_string()))?;
    let no_trace = || whole("it is no trace of resurgo run --trace, or it is damaged".to_string());
    let spans = resurgo_trace::reader::read(&bytes).map_err(|_| no_trace())?;
    if spans.is_empty() {
        return Err(no_trace());
    }
    Ok(Report::of(&spans))
}

fn write_picture(report: &Report, file: &Path, out: &Path) -> Result<(), String> {
    let failed = |reason: String| format!("cannot write --picture {}: {reason}", out.display());
    let place = |path: &Path| path.canonicalize().ok();
    if place(out).is_some_and(|place_of_out| Some(place_of_out) == place(file)) {
        return Err(failed("it is the trace".to_string()));
    }
    std::fs::write(out, drawn(report, file)).map_err(|error| failed(error.to_string()))
}

/// The picture of a trace.
///
/// # Errors
/// It cannot be read, or it is no trace.
pub fn picture_of(file: &Path) -> Result<String, String> {
    Ok(drawn(&report_of(file)?, file))
}

fn drawn(report: &Report, file: &Path) -> String {
    let name = file.file_name().unwrap_or(file.as_os_str());
    picture::of(report, &name.to_string_lossy())
}

/// A table: columns as wide as they must be, the first ones to the left.
fn table(out: &mut String, head: &[&str], left: usize, rows: &[Vec<String>]) {
    let mut width: Vec<usize> = head.iter().map(|word| word.len()).collect();
    for row in rows {
        for (width, cell) in width.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells
            .zip(&width)
            .enumerate()
            .map(|(at, (cell, width))| match at < left {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            });
        let cells: Vec<String> = cells.collect();
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
    };
    line(&mut head.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}

fn text(report: &Report) -> String {
    let ranks = counted(report.ranks.len() as u64, "rank", "ranks");
    let mut out = format!("{} of {ranks}\n\n", time(report.total));
    add_ranks(&mut out, report);
    add_calls(&mut out, report);
    add_late(&mut out, report);
    add_failures(&mut out, report);
    out
}

fn add_ranks(out: &mut String, report: &Report) {
    let row = |(rank, of): (&usize, &OfRank)| {
        vec![
            format!("rank {rank}"),
            time(of.total),
            time(of.computing),
            of.in_mpi.map_or("?".to_string(), time),
            time(of.waiting),
            time(of.replaying),
            grouped(of.sent),
            readable_size(of.sent_bytes),
            grouped(of.received),
        ]
    };
    let rows: Vec<_> = report.ranks.iter().map(row).collect();
    let head = [
        "",
        "total",
        "computing",
        "in MPI",
        "waiting",
        "replaying",
        "sent",
        "bytes",
        "received",
    ];
    table(out, &head, 1, &rows);
    if let Some(share) = balance(report.ranks.values().map(|of| of.computing)) {
        let _ = writeln!(
            out,
            "\nload balance {:.0} %: the mean time of computing, of the longest",
            share * 100.0
        );
    }
    for (rank, of) in report.ranks.iter().filter(|(_, of)| of.missing > 0) {
        let missing = counted(of.missing, "record", "records");
        let _ = writeln!(
            out,
            "rank {rank}: {missing} missing; times before the first one left are not in this report"
        );
    }
}

fn add_calls(out: &mut String, report: &Report) {
    let mut rows = Vec::new();
    for (rank, of) in &report.ranks {
        let mut calls: Vec<_> = of.calls.iter().collect();
        calls.sort_by_key(|(name, call)| (std::cmp::Reverse(call.time), (*name).clone()));
        for (name, call) in calls.into_iter().take(MOST) {
            rows.push(vec![
                format!("rank {rank}"),
                name.clone(),
                grouped(call.count),
                time(call.time),
                readable_mean(call.time, call.count),
                time(call.longest),
            ]);
        }
    }
    if !rows.is_empty() {
        out.push_str("\ncalls of MPI, without those in replays\n");
        table(out, &["", "", "calls", "time", "mean", "longest"], 2, &rows);
    }
}

fn readable_mean(sum: u64, count: u64) -> String {
    format!("{:.1} us", sum as f64 / count.max(1) as f64 / 1e3)
}

fn add_late(out: &mut String, report: &Report) {
    let mut late: Vec<_> = report.late.iter().collect();
    late.sort_by_key(|(who, late)| (std::cmp::Reverse(late.time), (*who).clone()));
    let rows: Vec<_> = late
        .into_iter()
        .take(MOST)
        .map(|((receiver, sender, call), late)| {
            vec![
                format!("rank {receiver} waited for rank {sender}"),
                call.clone(),
                grouped(late.messages),
                time(late.time),
                time(late.longest),
            ]
        })
        .collect();
    if !rows.is_empty() {
        out.push_str("\nlate senders: the message was sent after the wait for it had begun\n");
        table(out, &["", "", "messages", "waited", "longest"], 2, &rows);
    }
}

fn add_failures(out: &mut String, report: &Report) {
    if !report.failures.is_empty() {
        out.push_str("\nfailures\n");
    }
    for failure in &report.failures {
        let _ = writeln!(out, "{}", words::failure(failure));
    }
}

fn to_json(report: &Report) -> Value {
    let calls = |of: &OfRank| -> Value {
        let calls = of.calls.iter().map(|(name, call)| {
            let figures = json!({
                "calls": call.count,
                "seconds": seconds(call.time),
                "longest_seconds": seconds(call.longest),
            });
            (name.clone(), figures)
        });
        Value::Object(calls.collect())
    };
    let ranks = report.ranks.iter().map(|(rank, of)| {
        json!({
            "rank": rank,
            "total_seconds": seconds(of.total),
            "computing_seconds": seconds(of.computing),
            "mpi_seconds": of.in_mpi.map(seconds),
            "waiting_seconds": seconds(of.waiting),
            "replay_seconds": seconds(of.replaying),
            "sent": of.sent,
            "sent_bytes": of.sent_bytes,
            "received": of.received,
            "missing_records": of.missing,
            "unrecorded_seconds": seconds(of.unrecorded),
            "calls": calls(of),
        })
    });
    let late = report.late.iter().map(|((receiver, sender, call), late)| {
        json!({
            "receiver": receiver,
            "sender": sender,
            "call": Some(call).filter(|call| !call.is_empty()),
            "messages": late.messages,
            "seconds": seconds(late.time),
            "longest_seconds": seconds(late.longest),
        })
    });
    let failures = report.failures.iter().map(|failure| {
        json!({
            "rank": failure.rank,
            "life": failure.life,
            "cause": failure.cause,
            "at_seconds": seconds(failure.at),
            "cost_seconds": seconds(failure.cost),
            "begin_seconds": failure.begins.map(seconds),
            "replay_seconds": seconds(failure.replay),
            "complete": failure.is_over,
        })
    });
    json!({
        "seconds": seconds(report.total),
        "load_balance": balance(report.ranks.values().map(|of| of.computing)),
        "ranks": ranks.collect::<Vec<_>>(),
        "late_senders": late.collect::<Vec<_>>(),
        "failures": failures.collect::<Vec<_>>(),
    })
}
