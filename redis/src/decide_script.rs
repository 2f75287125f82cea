//! The scripts that decide checks.
//!
//! Such a script is made of fragments, one for each limit. So there is one script for each *combination of kinds* of
//! limits, and quotas are arguments of the script. A script gets a list of the costs of several calls, and decides the
//! calls in the order of this list. The script then writes the resulting state, and returns the server's time and the
//! state that it found. From that time and that state, this process computes the decision of each call, with the
//! algorithm's own arithmetic.
//!
//! Numbers in Lua are floating-point numbers. Integers are exact up to 2^53, and only the format `%d` prints all of
//! their digits. So limits that need larger numbers have no script.

use super::fragments::{Fragments, fragments};
use super::scripts::{STAMP, Script, TimeSource};
use tower_throttle::store_support::{MAX_LOCALS, StepKind};

/// The number of local variables for each key, apart from those of its steps.
const KEY_LOCALS: usize = 4;

/// The limits of one key in a script.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeySteps {
    pub(super) kinds: Vec<StepKind>,
    /// `true` if the limits of the key are in shadow mode: they do not decide whether a call is admitted. If the other
    /// keys admit the call, these limits are charged, provided that they would admit the call as well.
    pub(super) is_in_shadow: bool,
}

impl Script {
    /// Creates the script that decides checks, or returns `None` if it would need too many variables. Usually `keys`
    /// has one key. A joint call has several keys, and is charged to all of them or to none. The script has one
    /// argument, because the server reads one long argument faster than many short ones. It contains the deadline, the
    /// beginnings of the values that this process writes, one for each key, the arguments of all steps, and the costs
    /// of each call, one for each key. Each number has eight bytes, and each string ends with a zero byte.
    pub(super) fn decide(source: TimeSource, keys: &[KeySteps]) -> Option<Self> {
        let locals =
            |key: &KeySteps| KEY_LOCALS + key.kinds.iter().map(|kind| kind.local_count()).sum::<usize>();
        if keys.iter().map(locals).sum::<usize>() > MAX_LOCALS {
            return None;
        }
        let mut script = Decide::default();
        script.unpack(keys);
        script.text.push_str(source.clock());
        script.get(keys.len());
        for (at, key) in keys.iter().enumerate() {
            script.read(at, key);
        }
        script.take(keys);
        for at in 0..keys.len() {
            script.write(at);
        }
        script.text.push_str("return 'D' .. stamp .. all\n");
        // With a variable `stamp`, Lua would create one more string for each call.
        Some(Self::new(script.text.replace("stamp", STAMP)))
    }
}

/// The script that decides checks, while its text is made.
#[derive(Default)]
struct Decide {
    text: String,
    /// The number of steps so far.
    steps: usize,
    /// For each key, the fragments of its steps.
    fragments: Vec<Vec<Filled>>,
}

/// The fragments of a step, with the names of variables filled in.
struct Filled {
    fits: String,
    take: String,
    write: String,
    ttl: String,
}

impl Decide {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Unpacks the argument up to the costs of the first call. `i` is the index at which the costs of the next call
    /// begin.
    fn unpack(&mut self, keys: &[KeySteps]) {
        let kinds = keys.iter().flat_map(|key| &key.kinds).enumerate();
        let arguments =
            kinds.flat_map(|(step, kind)| (0..kind.argument_count()).map(move |index| argument(step, index)));
        let numbers: Vec<_> = arguments.chain(costs(keys.len())).collect();
        let prefixes: Vec<_> = (0..keys.len()).map(|at| format!("prefix{at}")).collect();
        let format = format!(">d{}{}", "s".repeat(prefixes.len()), "d".repeat(numbers.len()));
        let names = [&["deadline".to_owned()], &prefixes[..], &numbers].concat().join(", ");
        self.line(&format!("local packed = ARGV[1]\nlocal {names}, i = struct.unpack('{format}', packed)"));
    }

    /// Gets the value of each key, as the script that only reads does, but without a table.
    fn get(&mut self, keys: usize) {
        for at in 0..keys {
            self.line(&format!("local value{at} = c('GET', KEYS[{}])", at + 1));
            self.line(&format!("if value{at} == '' then return 'E' .. stamp end"));
        }
        let lengths = (0..keys - 1).map(|at| format!("#(value{at} or '') .. ' '"));
        let values = (0..keys).map(|at| format!("(value{at} or '')"));
        let all: Vec<_> = lengths.chain(values).collect();
        self.line(&format!("local all = {}", all.join(" .. ")));
        self.line("local s, p, back");
    }

    /// Adds the lines that read the state of a key, and advance the state to the present time.
    fn read(&mut self, at: usize, key: &KeySteps) {
        self.line(&format!("s, p, back = value{at}, #prefix{at} + 1, false"));
        self.line(&format!(
            "if s and string.find(s, prefix{at}, 1, true) ~= 1 then return 'O' .. stamp .. all end"
        ));
        let mut filled = Vec::with_capacity(key.kinds.len());
        for kind in &key.kinds {
            let step = self.steps;
            let fill = |fragment: &str| {
                let mut text = fragment.replace('$', &step.to_string()).replace("cost", &format!("cost{at}"));
                for index in 0..kind.argument_count() {
                    text = text.replace(&format!("@{}", index + 1), &argument(step, index));
                }
                text
            };
            let Fragments { read, fits, take, write, ttl } = fragments(*kind);
            self.text.push_str(&fill(read));
            filled.push(Filled { fits: fill(fits), take: fill(take), write: fill(write), ttl: fill(ttl) });
            self.steps += 1;
        }
        self.line("if s and p ~= #s + 1 then return 'O' .. stamp .. all end");
        // The state of a key must be written if the clock was set back, even if nothing is charged.
        self.line(&format!("local must{at} = back"));
        self.fragments.push(filled);
    }

    /// Decides the calls in order, and charges those that are admitted.
    fn take(&mut self, keys: &[KeySteps]) {
        let count = keys.len();
        self.line("while true do");
        let deciding = |at: &usize| !keys[*at].is_in_shadow;
        let fits: Vec<_> = (0..count).filter(deciding).map(|at| self.fits(at)).collect();
        self.line(&format!(
            "if {} then",
            if fits.is_empty() { "true".to_owned() } else { fits.join(" and ") }
        ));
        for (at, key) in keys.iter().enumerate() {
            if key.is_in_shadow {
                self.line(&format!("if {} then", self.fits(at)));
            }
            let takes: Vec<_> = self.fragments[at].iter().map(|step| step.take.clone()).collect();
            takes.iter().for_each(|take| self.line(take));
            self.line(&format!("must{at} = true"));
            if key.is_in_shadow {
                self.line("end");
            }
        }
        let (format, costs) = ("d".repeat(count), costs(count).collect::<Vec<_>>().join(", "));
        self.line("end\nif i > #packed then break end");
        self.line(&format!("{costs}, i = struct.unpack('>{format}', packed, i)\nend"));
    }

    fn fits(&self, at: usize) -> String {
        let fits: Vec<_> = self.fragments[at].iter().map(|step| step.fits.as_str()).collect();
        fits.join(" and ")
    }

    /// Adds the lines of the script that write the state of a key, if the state must be written.
    fn write(&mut self, at: usize) {
        self.line(&format!("if must{at} then\nlocal x, ttl = prefix{at}"));
        for (step, Filled { write, ttl, .. }) in std::mem::take(&mut self.fragments[at]).iter().enumerate() {
            let ttl = if step == 0 { ttl.clone() } else { format!("math.max(ttl, {ttl})") };
            // Each fragment is in a block of its own, since a function can have at most 200 local variables.
            self.line(&format!("do\n{write}ttl = {ttl}\nend"));
        }
        self.line(&format!("c('PSETEX', KEYS[{}], ttl + 1, x)\nend", at + 1));
    }
}

/// Returns the name of the variable of an argument.
fn argument(step: usize, index: usize) -> String {
    format!("a{step}_{index}")
}

/// Returns the names of the variables of a call's costs, one for each key.
fn costs(keys: usize) -> impl Iterator<Item = String> {
    (0..keys).map(|at| format!("cost{at}"))
}
