//! `oxshmem-explore`: explores programs for as long as asked.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use oxshmem_explore::explore::{self, Limit, Replay};
use oxshmem_explore::module::Recipe;
use oxshmem_explore::mutants::{MODULES, MUTANTS, NARROW};
use oxshmem_explore::world::load;

/// Runs the device headers under many schedules, and stops at the first that violates an invariant.
#[derive(Debug, Parser)]
struct Arguments {
    /// The module: a file in explore/programs; all if absent.
    #[arg(long)]
    module: Option<String>,
    /// The program; all of the module's if absent.
    #[arg(long)]
    program: Option<String>,
    /// Macros for the module, as NAME=VALUE: widths of counters.
    #[arg(short = 'D', long = "define", default_values = NARROW)]
    defines: Vec<String>,
    /// A patch of the headers: a file in explore/mutants.
    #[arg(long)]
    mutant: Option<String>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds for each program.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Steps for each program.
    #[arg(long, default_value_t = u64::MAX)]
    steps: u64,
    /// Execute the seed alone, made for executions of that many steps, and print what it does.
    #[arg(long)]
    replay: Option<u64>,
    /// Explore all executions.
    #[arg(long)]
    exhaustive: bool,
    /// Go on after a violation.
    #[arg(long)]
    all: bool,
    /// Look for every mutant.
    #[arg(long)]
    mutants: bool,
    /// Print no traces.
    #[arg(long)]
    brief: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("oxshmem-explore: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    if arguments.mutants {
        let mut good = true;
        for mutant in MUTANTS {
            let (found, steps) = mutant.hunt(arguments.seed, arguments.steps.min(60_000_000))?;
            let text =
                found.as_ref().map_or("NOT FOUND".to_owned(), |found| format!("{}: {}", found.program, found.text));
            println!("{:32} {:6.2} M steps: {text}", mutant.name, steps as f64 / 1e6);
            good &= found.is_some();
        }
        return Ok(good);
    }
    let files = arguments.module.as_deref().map_or_else(|| MODULES.to_vec(), |file| vec![file]);
    let mut good = true;
    for file in files {
        good &= run_module(arguments, file)?;
        if !good && !arguments.all {
            break;
        }
    }
    Ok(good)
}

fn run_module(arguments: &Arguments, file: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let recipe = Recipe { file: file.to_owned(), defines: arguments.defines.clone(), patch: arguments.mutant.clone() };
    let module = load(&recipe)?;
    if let (Some(program), Some(steps)) = (&arguments.program, arguments.replay) {
        let replay = Replay::Seed { seed: arguments.seed, steps };
        let found = explore::replay(&module, program, &replay)?;
        println!("{}", found.as_ref().map_or("ok".to_owned(), ToString::to_string));
        return Ok(found.is_none());
    }
    let programs = arguments.program.clone().map_or_else(|| module.names(), |program| vec![program]);
    let limit = Limit { steps: arguments.steps, time: Duration::from_secs_f64(arguments.seconds) };
    let mut good = true;
    for program in &programs {
        let report = if arguments.exhaustive {
            explore::exhaustive(&module, program, 1 << 24, limit)?
        } else {
            explore::random(&module, program, arguments.seed, limit)?
        };
        let rate = report.steps as f64 / report.time.as_secs_f64() / 1e6;
        let states = if arguments.exhaustive {
            format!(", {} states{}", report.states, if report.complete { ", complete" } else { "" })
        } else {
            String::new()
        };
        println!(
            "{file:8} {program:20} {:9} executions, {:6.1} M steps{states}, {rate:.2} M steps/s: {}",
            report.executions,
            report.steps as f64 / 1e6,
            report.found.as_ref().map_or("ok", |found| &found.text)
        );
        if let Some(found) = report.found {
            good = false;
            if !arguments.brief {
                println!("{found}");
            }
            if !arguments.all {
                break;
            }
        }
    }
    Ok(good)
}
