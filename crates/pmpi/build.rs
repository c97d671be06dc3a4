//! The library has its name also where it is found by that.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libresurgo-pmpi.so");
    println!("cargo:rerun-if-changed=build.rs");
}
