//! Builds the restorer: a program without a standard library, at an address of its own, that the library carries along.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("restorer");
    let rustc = std::env::var_os("RUSTC").expect("cargo sets it");
    let target = std::env::var("TARGET").expect("cargo sets it");
    let status = Command::new(rustc)
        .args([
            "--edition",
            "2024",
            "--crate-name",
            "restorer",
            "--crate-type",
            "bin",
            "--target",
            &target,
        ])
        .args([
            "-Copt-level=s",
            "-Cpanic=abort",
            "-Cstrip=symbols",
            "-Crelocation-model=static",
            "-Ccode-model=large",
        ])
        .args([
            "-Clink-arg=-nostartfiles",
            "-Clink-arg=-nostdlib",
            "-Clink-arg=-static",
            "-Clink-arg=-no-pie",
        ])
        .arg("-Clink-arg=-Wl,--image-base=0x20000000000,--build-id=none")
        .arg("-o")
        .arg(out)
        .arg("restorer/main.rs")
        .status()
        .expect("rustc runs");
    assert!(status.success(), "the restorer could not be built");
    for file in ["build.rs", "restorer/main.rs", "src/file/plan.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
}
