//! Says whether this compiler has AVX-512 (stable since Rust 1.89); older ones build without it.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(bones_avx512)");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version =
        Command::new(rustc).arg("--version").output().map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let minor = version.ok().and_then(|text| text.split('.').nth(1)?.parse::<u32>().ok());
    let is_x86 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    if is_x86 && minor.is_some_and(|minor| minor >= 89) {
        println!("cargo::rustc-cfg=bones_avx512");
    }
}
