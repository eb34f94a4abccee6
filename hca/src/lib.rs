//! stub
pub mod error;
pub mod fdpass;
pub mod prm { #[derive(Debug,Clone,Copy)] #[repr(u8)] pub enum CommandStatus { A=0 } impl CommandStatus { pub fn text(self)->&'static str{""}} }
pub mod provider;
pub use error::{Error, Result};
