//! Stage "tune": measured costs where candidates are close.
//!
//! The kernels of the plan, and those that would replace a part of it at little more than its cost, are timed; then
//! the program is solved again with measured costs, until the plan asks for no new measurement. At last the kernels of the
//! plan are timed under several schedules each, and beside library calls that do the same where these were asked for.

use crate::candidates::{Column, costs_us};
use crate::implement::{KernelDesign, Measured, MeasuredCall, Place};
use crate::race::Whole;
use crate::{Error, Library, Options, passes};
use orch_plan::blp::{Choice, ColumnId};
use orch_tune::{Database, Key, Records};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, Instant};

/// Solves at most.
const ROUNDS: usize = 3;

/// A candidate is close if it costs at most this many times what the plan spends on the same units.
const CLOSE: f64 = 1.25;

/// The same for µGraphs, whose costs are known less well.
const CLOSE_MUGRAPH: f64 = 1.6;

/// Kernels that a round measures at most, the closest ones.
const MAX_KERNELS: usize = 64;

/// Time for the measurements that the choice of kernels needs, building the kernels included.
const BUDGET: Duration = Duration::from_secs(20);

/// The same for the measurements of schedules, for each that a kernel may have.
const SCHEDULE_BUDGET: Duration = Duration::from_millis(2500);

/// How much less time another schedule or plan than the preferred one has to take.
const FASTER: f64 = 0.98;

/// Kernels that are timed in turn.
const TOGETHER: usize = 16;

/// Chooses with the costs of all columns.
pub type Solve<'a> = dyn FnMut(&[f64]) -> Result<Choice, Error> + 'a;

/// Microseconds of the kernels of some columns; `None` for those that are not measured.
pub type Measure<'a> = dyn FnMut(&[usize]) -> Result<Vec<Option<f64>>, Error> + 'a;

/// The choice by measured costs, beginning with the one by modelled costs; and what was measured, by kernel.
///
/// # Errors
/// Those of solving and measuring.
pub fn tune(
    columns: &[Column],
    mut choice: Choice,
    solve: &mut Solve<'_>,
    measure: &mut Measure<'_>,
) -> Result<(Choice, BTreeMap<usize, f64>), Error> {
    let mut costs = costs_us(columns);
    let mut asked = BTreeSet::new();
    let mut measured = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut wanted = close(columns, &choice.columns, &costs);
        wanted.retain(|&column| columns[column].kernel.is_some_and(|kernel| asked.insert(kernel)));
        if wanted.is_empty() {
            break;
        }
        for (&column, time) in wanted.iter().zip(measure(&wanted)?) {
            measured.extend(columns[column].kernel.zip(time));
        }
        costs = mixed(columns, &measured);
        choice = solve(&costs)?;
    }
    Ok((choice, measured))
}

/// The chosen columns, and those that would replace a part of them at little more than its cost, closest first.
fn close(columns: &[Column], chosen: &[ColumnId], costs: &[f64]) -> Vec<usize> {
    let mut share: BTreeMap<_, f64> = BTreeMap::new();
    for id in chosen {
        let units = &columns[id.index()].candidate.nodes;
        for unit in units {
            *share.entry(*unit).or_default() += costs[id.index()] / units.len() as f64;
        }
    }
    let mut found: Vec<(f64, usize)> = chosen.iter().map(|id| (0.0, id.index())).collect();
    for (number, column) in columns.iter().enumerate() {
        let replaced: f64 = column.candidate.nodes.iter().filter_map(|unit| share.get(unit)).sum();
        let close = if column.substitute.is_some() { CLOSE_MUGRAPH } else { CLOSE };
        if costs[number] <= close * replaced {
            found.push((costs[number] / replaced.max(f64::MIN_POSITIVE), number));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut kernels = BTreeSet::new();
    found.retain(|&(_, column)| columns[column].kernel.is_some_and(|kernel| kernels.insert(kernel)));
    found.truncate(MAX_KERNELS.max(chosen.len()));
    found.into_iter().map(|(_, column)| column).collect()
}

/// Measured costs where they are known; modelled ones elsewhere, times the median of measured over modelled.
pub fn mixed(columns: &[Column], measured: &BTreeMap<usize, f64>) -> Vec<f64> {
    let time = |column: &Column| column.kernel.and_then(|kernel| measured.get(&kernel).copied());
    let mut seen = BTreeSet::new();
    let mut ratios: Vec<f64> = (columns.iter())
        .filter(|column| column.kernel.is_some_and(|kernel| seen.insert(kernel)))
        .filter_map(|column| Some(time(column)? / column.cost_us.max(f64::MIN_POSITIVE)))
        .collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios.get(ratios.len() / 2).copied().unwrap_or(1.0);
    columns.iter().map(|column| time(column).unwrap_or(column.cost_us * ratio)).collect()
}

/// Times kernels on this machine, or takes what an earlier compilation measured.
pub struct Timer<'a> {
    place: Place<'a>,
    columns: &'a [Column],
    signatures: &'a [String],
    options: &'a Options,
    source: Figures,
    deadline: Instant,
}

/// The fastest schedules of a column's kernels.
#[derive(Default)]
struct Fastest {
    /// Of each kernel.
    schedules: Vec<String>,
    /// The library call that is faster than those of a single kernel.
    call: Option<MeasuredCall>,
    /// Of all kernels together.
    time_us: f64,
}

/// Where times come from.
enum Figures {
    /// This machine. Without the database, which may not be usable, everything is measured anew.
    Here { database: Option<Database> },
    /// A file of another machine's.
    Records(Records),
}

impl<'a> Timer<'a> {
    /// A timer of candidates; `signatures` are those of the kernels.
    ///
    /// # Errors
    /// If the options name a file of records that cannot be read, or has lines that are none.
    pub fn new(
        place: Place<'a>,
        columns: &'a [Column],
        signatures: &'a [String],
        options: &'a Options,
    ) -> Result<Self, Error> {
        let source = match &options.records {
            Some(path) => Figures::Records(read_records(path)?),
            None => {
                let database = Database::open(&options.cache_dir).ok();
                Figures::Here { database }
            }
        };
        Ok(Self { place, columns, signatures, options, source, deadline: Instant::now() + BUDGET })
    }

    /// Times the kernels of some columns: those of templates under the preferred schedules, those of µGraphs under the fastest
    /// ones, because numbers of blocks may suit one of them only, and several of them together.
    ///
    /// # Errors
    /// If the work is cancelled, or kernels do not build or load.
    pub fn measure(&self, wanted: &[usize]) -> Result<Vec<Option<f64>>, Error> {
        let (substitutes, mut others): (Vec<usize>, Vec<usize>) =
            wanted.iter().partition(|&&column| self.columns[column].substitute.is_some());
        let mut times = BTreeMap::new();
        for (&column, fastest) in substitutes.iter().zip(self.fastest(&substitutes, self.deadline)?) {
            if let Some(fastest) = fastest {
                times.insert(column, fastest.time_us);
            } else {
                others.push(column);
            }
        }
        let keys: Vec<Option<Key>> = others.iter().map(|&column| self.key(column, None)).collect();
        let run = |numbers: &[usize]| {
            let columns: Vec<usize> = numbers.iter().map(|&number| others[number]).collect();
            self.run(&columns)
        };
        let timed = self.known_or_timed(&keys, self.deadline, run)?;
        times.extend(others.iter().zip(timed).filter_map(|(&column, time)| Some((column, time?))));
        Ok(wanted.iter().map(|column| times.get(column).copied()).collect())
    }

    /// Times the kernels of a choice under several schedules each, and notes the fastest ones.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub fn schedules(&self, choice: &Choice, measured: &mut Measured) -> Result<(), Error> {
        let schedules = u32::try_from(self.options.tune_schedules).unwrap_or(u32::MAX);
        let deadline = Instant::now() + SCHEDULE_BUDGET.saturating_mul(schedules);
        let mut kernels = BTreeSet::new();
        let mut columns: Vec<usize> = choice.columns.iter().map(|id| id.index()).collect();
        columns.retain(|&column| self.columns[column].kernel.is_some_and(|kernel| kernels.insert(kernel)));
        columns.sort_by(|&a, &b| self.columns[b].cost_us.total_cmp(&self.columns[a].cost_us));
        for some in columns.chunks(TOGETHER) {
            for (&column, fastest) in some.iter().zip(self.fastest(some, deadline)?) {
                let Some((kernel, fastest)) = self.columns[column].kernel.zip(fastest) else { continue };
                let signature = &self.signatures[kernel];
                measured.times.insert(signature.clone(), fastest.time_us);
                measured.schedules.insert(signature.clone(), fastest.schedules);
                measured.calls.extend(fastest.call.map(|call| (signature.clone(), call)));
            }
        }
        Ok(())
    }

    /// What a whole plan's time is kept under, and what it is if it is known: kernels of a GPU overlap.
    pub fn whole(&self, choice: &Choice, measured: &Measured) -> Option<Whole> {
        let mut program = String::new();
        for id in &choice.columns {
            let signature = &self.signatures[self.columns[id.index()].kernel?];
            let ways = measured.schedules.get(signature).map(|all| all.join("; ")).unwrap_or_default();
            let call = measured.calls.get(signature).map(|call| call.release.clone()).unwrap_or_default();
            program += &format!("{signature}\n{ways} {call}\n");
        }
        let first = choice.columns.first()?.index();
        let flags = format!("time of a plan, {}", self.options.precision.name());
        let key = Key { program, flags, ..self.key(first, None)? };
        Some(Whole { time_us: self.known(&key), key })
    }

    /// A time from the records or the database.
    fn known(&self, key: &Key) -> Option<f64> {
        match &self.source {
            Figures::Here { database } => database.as_ref()?.get(key),
            Figures::Records(records) => records.time(key),
        }
    }

    /// The fastest schedules of the kernels of some columns; none where there is no choice, or a kernel is not timed.
    fn fastest(&self, columns: &[usize], deadline: Instant) -> Result<Vec<Option<Fastest>>, Error> {
        let of_columns: Vec<(&Column, Vec<(Library, String)>)> =
            columns.iter().map(|&column| (&self.columns[column], self.releases(column))).collect();
        let designs = self.place.schedules(&of_columns, self.options)?;
        let (mut keys, mut kernels) = (Vec::new(), Vec::new());
        for (&column, of_column) in columns.iter().zip(&designs) {
            for (number, design) in
                of_column.iter().enumerate().flat_map(|(n, all)| all.iter().map(move |d| (n, d)))
            {
                let way = design.way();
                let name = if number == 0 { way.to_owned() } else { format!("kernel {number}, {way}") };
                keys.push(self.key(column, Some(&name)));
                kernels.push(design);
            }
        }
        let run = |numbers: &[usize]| {
            let alone = |&number: &usize| vec![kernels[number].clone()];
            let kernels: Vec<Vec<KernelDesign>> = numbers.iter().map(alone).collect();
            self.times(&kernels)
        };
        let mut times = self.known_or_timed(&keys, deadline, run)?.into_iter();
        let mut all = Vec::with_capacity(columns.len());
        let mut chains = Vec::new();
        for (&column, of_column) in columns.iter().zip(&designs) {
            let mut sum = (!of_column.is_empty()).then(Fastest::default);
            let mut chain = Vec::new();
            for designs in of_column {
                let times: Vec<Option<f64>> = times.by_ref().take(designs.len()).collect();
                let timed = sum.take().zip(fastest_way(designs, &times));
                sum = timed.map(|(mut sum, (design, time_us, call))| {
                    sum.schedules.push(design.design.schedule.clone());
                    chain.push(design.clone());
                    Fastest { time_us: sum.time_us + time_us, call, ..sum }
                });
            }
            if sum.is_some() && chain.len() > 1 {
                chains.push((all.len(), column, chain));
            }
            all.push(sum);
        }
        self.time_chains(&chains, &mut all, deadline)?;
        Ok(all)
    }

    /// Times kernels that follow one another together: one starts while the one before it ends.
    fn time_chains(
        &self,
        chains: &[(usize, usize, Vec<KernelDesign>)],
        all: &mut [Option<Fastest>],
        deadline: Instant,
    ) -> Result<(), Error> {
        let key = |(_, column, chain): &(usize, usize, Vec<KernelDesign>)| {
            let ways: Vec<&str> = chain.iter().map(KernelDesign::way).collect();
            self.key(*column, Some(&format!("chain: {}", ways.join("; "))))
        };
        let keys: Vec<Option<Key>> = chains.iter().map(key).collect();
        let run = |numbers: &[usize]| {
            let chains: Vec<Vec<KernelDesign>> =
                numbers.iter().map(|&number| chains[number].2.clone()).collect();
            self.times(&chains)
        };
        for ((at, ..), time) in chains.iter().zip(self.known_or_timed(&keys, deadline, run)?) {
            if let (Some(fastest), Some(time_us)) = (&mut all[*at], time) {
                fastest.time_us = time_us;
            }
        }
        Ok(())
    }

    /// Times by key, from the records or the database; what is not there is timed by `run`, some at a time, until the
    /// deadline.
    fn known_or_timed(
        &self,
        keys: &[Option<Key>],
        deadline: Instant,
        run: impl Fn(&[usize]) -> Result<Vec<Option<f64>>, Error>,
    ) -> Result<Vec<Option<f64>>, Error> {
        let mut times: Vec<Option<f64>> = keys.iter().map(|key| self.known(key.as_ref()?)).collect();
        let Figures::Here { database } = &self.source else { return Ok(times) };
        let missing: Vec<usize> = (0..keys.len()).filter(|&number| times[number].is_none()).collect();
        for some in missing.chunks(TOGETHER) {
            if Instant::now() >= deadline {
                break;
            }
            for (&number, time) in some.iter().zip(run(some)?) {
                times[number] = time;
                if let (Some(database), Some(key), Some(time)) = (database, &keys[number], time) {
                    // A figure that cannot be kept is measured again.
                    let _ = database.put(key, &time);
                }
            }
        }
        Ok(times)
    }

    /// The libraries that were asked for and whose calls may be made instead of a column's kernel, with releases: those that
    /// are here, or those that were fastest where the records are from.
    fn releases(&self, column: usize) -> Vec<(Library, String)> {
        let release = |library: Library| match &self.source {
            Figures::Here { .. } => self.place.backend.library(library).ok(),
            Figures::Records(records) => {
                let any_release = format!("{} ", library.label());
                let release = records.fastest_continuation(&self.key(column, Some(&any_release))?)?;
                Some(any_release + release)
            }
        };
        let asked = Library::ALL.into_iter().filter(|library| self.options.libraries.contains(library));
        asked.filter_map(|library| Some((library, release(library)?))).collect()
    }

    /// What the time of a column's kernel is kept under: done in this way, or with the preferred schedule.
    fn key(&self, column: usize, way: Option<&str>) -> Option<Key> {
        let backend = self.place.backend;
        // Records are used whatever compiler they are of, and there may be none here.
        let compiler = backend.compiler().unwrap_or_default();
        Some(Key {
            program: self.signatures[self.columns[column].kernel?].clone(),
            target: backend.target(),
            machine: backend.machine(),
            compiler: format!("{compiler} {}", env!("ORCHESTRION_SOURCES")),
            flags: format!(
                "time of a kernel, {}{}",
                self.options.precision.name(),
                way.map_or(String::new(), |way| format!(", {way}"))
            ),
        })
    }

    /// Times of chains of kernels after the passes: of the code that a plan would run.
    fn times(&self, chains: &[Vec<KernelDesign>]) -> Result<Vec<Option<f64>>, Error> {
        let chains = passes::run_on_timed(chains, self.options)?;
        self.place.backend.times(&chains, self.options)
    }

    /// Builds and times the kernels of columns, in turns; those of one column follow one another.
    fn run(&self, columns: &[usize]) -> Result<Vec<Option<f64>>, Error> {
        let columns: Vec<&Column> = columns.iter().map(|&column| &self.columns[column]).collect();
        let designs = self.place.designs(&columns, self.options)?;
        let is_served: Vec<bool> = designs.iter().map(Option::is_some).collect();
        let served: Vec<Vec<KernelDesign>> = designs.into_iter().flatten().collect();
        let mut times = self.times(&served)?.into_iter();
        let time = |is_served: bool| if is_served { times.next().flatten() } else { None };
        Ok(is_served.into_iter().map(time).collect())
    }
}

/// The fastest of a kernel's designs and its time. If that is a library call, it is given beside the fastest kernel that is
/// passed the same as the call.
fn fastest_way<'a>(
    designs: &'a [KernelDesign],
    times: &[Option<f64>],
) -> Option<(&'a KernelDesign, f64, Option<MeasuredCall>)> {
    let own = designs.iter().position(|design| design.call.is_some()).unwrap_or(designs.len());
    let (fastest_own, own_us) = fastest(&times[..own])?;
    let calls = designs[own..].iter().zip(&times[own..]);
    let calls = calls.filter_map(|(design, time)| Some((design, design.call.as_ref()?, (*time)?)));
    let called = calls.min_by(|a, b| a.2.total_cmp(&b.2));
    let Some((called, call, time)) = called.filter(|(_, _, time)| *time <= FASTER * own_us) else {
        return Some((&designs[fastest_own], own_us, None));
    };
    let bindings = |design: &KernelDesign| design.design.kernel.bindings == called.design.kernel.bindings;
    let beside: Vec<Option<f64>> =
        designs[..own].iter().zip(times).map(|(design, time)| time.filter(|_| bindings(design))).collect();
    let (design, own_us) = fastest(&beside).map_or((called, own_us), |(number, us)| (&designs[number], us));
    let (library, release) = (call.computation.library(), call.release.clone());
    Some((design, time, Some(MeasuredCall { library, release, own_us })))
}

/// The number and the time of the fastest schedule or plan; the first, preferred one, unless another is clearly faster.
/// `None` if none was timed.
pub fn fastest(times: &[Option<f64>]) -> Option<(usize, f64)> {
    let timed = times.iter().enumerate().filter_map(|(number, time)| Some((number, (*time)?)));
    let fastest = timed.min_by(|a, b| a.1.total_cmp(&b.1))?;
    match times[0] {
        Some(first) if fastest.1 > FASTER * first => Some((0, first)),
        _ => Some(fastest),
    }
}

/// Reads an exported file.
fn read_records(path: &Path) -> Result<Records, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let mut input = BufReader::new(File::open(path).map_err(failed)?);
    let (records, report) = Records::read(&mut input).map_err(failed)?;
    match &report.rejected[..] {
        [] => Ok(records),
        [first, ..] => Err(Error::Input(format!(
            "{}: line {} is not a measurement: {}; `orchestrion cache export` writes such files",
            path.display(),
            first.line,
            first.reason
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{LORA, with_place};
    use orch_ir::{NodeId, TensorId};
    use orch_plan::blp::{self, ChooseOptions, Problem};
    use orch_plan::enumerate::Candidate;

    /// A column that runs units `from..to` of a chain; its kernel has the column's number.
    fn column(kernel: usize, from: u32, to: u32, cost_us: f64) -> Column {
        let candidate = Candidate {
            nodes: (from..to).map(NodeId).collect(),
            inputs: vec![TensorId(from)],
            outputs: vec![TensorId(to)],
            is_convex: true,
        };
        Column { candidate, substitute: None, cost_us, kernel: Some(kernel) }
    }

    fn solve(columns: &[Column], costs: &[f64], units: u32) -> Choice {
        let columns = columns.iter().zip(costs);
        let problem = Problem {
            classes: units as usize + 1,
            available: vec![TensorId(0).into()],
            required: vec![TensorId(units).into()],
            columns: columns
                .map(|(column, &cost)| blp::Column::of_candidate(&column.candidate, cost))
                .collect(),
        };
        blp::choose(&problem, &ChooseOptions::default(), &orch_plan::solver::MicroLp).unwrap()
    }

    /// The chosen columns, and those measured in each round, with these times of the kernels.
    fn tuned(columns: &[Column], times: &[Option<f64>], units: u32) -> (Vec<usize>, Vec<Vec<usize>>) {
        let costs: Vec<f64> = columns.iter().map(|column| column.cost_us).collect();
        let first = solve(columns, &costs, units);
        let mut rounds = Vec::new();
        let mut measure = |wanted: &[usize]| {
            rounds.push(wanted.to_vec());
            Ok(wanted.iter().map(|&column| times[column]).collect())
        };
        let mut again = |costs: &[f64]| Ok(solve(columns, costs, units));
        let (choice, measured) = tune(columns, first, &mut again, &mut measure).unwrap();
        assert!(measured.iter().all(|(&kernel, &time)| times[kernel] == Some(time)));
        (choice.columns.iter().map(|id| id.index()).collect(), rounds)
    }

    #[test]
    fn a_close_alternative_that_measures_better_is_taken() {
        // One kernel for both units, modelled a little better than two that in truth take half as long.
        let columns = [column(0, 0, 2, 10.0), column(1, 0, 1, 5.5), column(2, 1, 2, 5.5)];
        let (chosen, rounds) = tuned(&columns, &[Some(20.0), Some(5.0), Some(5.0)], 2);
        assert_eq!((chosen, rounds), (vec![1, 2], vec![vec![0, 1, 2]]));
    }

    #[test]
    fn a_far_alternative_is_not_measured_and_scaled_like_the_others() {
        let columns = [column(0, 0, 2, 10.0), column(1, 0, 1, 9.0), column(2, 1, 2, 9.0)];
        let (chosen, rounds) = tuned(&columns, &[Some(50.0), None, None], 2);
        assert_eq!((chosen, rounds), (vec![0], vec![vec![0]]));
    }

    #[test]
    fn what_becomes_close_is_measured_in_the_next_round() {
        // The median kernel takes as long as modelled; the chosen one twice that, and so the far one is close.
        let columns =
            [column(0, 0, 1, 4.0), column(1, 1, 2, 4.0), column(2, 2, 3, 4.0), column(3, 2, 3, 7.0)];
        let (chosen, rounds) = tuned(&columns, &[Some(4.0), Some(4.0), Some(8.0), Some(6.0)], 3);
        assert_eq!((chosen, rounds), (vec![0, 1, 3], vec![vec![0, 1, 2], vec![3]]));
    }

    #[test]
    fn the_preferred_schedule_stays_unless_another_is_clearly_faster() {
        assert_eq!(super::fastest(&[Some(3.0), None, Some(2.0), Some(2.5)]), Some((2, 2.0)));
        assert_eq!(super::fastest(&[Some(3.0), Some(2.99)]), Some((0, 3.0)));
        assert_eq!(super::fastest(&[None, Some(2.0)]), Some((1, 2.0)));
        assert_eq!(super::fastest(&[None, None]), None);
        assert_eq!(super::fastest(&[]), None);
    }

    #[test]
    fn without_measurements_the_modelled_choice_stays() {
        let columns = [column(0, 0, 2, 10.0), column(1, 0, 1, 5.5), column(2, 1, 2, 5.5)];
        let (chosen, rounds) = tuned(&columns, &[None, None, None], 2);
        assert_eq!((chosen, rounds.len()), (vec![0], 1));
    }

    #[test]
    fn a_kernel_of_a_mugraph_runs_as_its_fastest_schedule_does() {
        let folder = std::env::temp_dir().join(format!("orchestrion-schedules-{}", std::process::id()));
        // Measurements of another machine, of which there are none, have more alternatives looked at.
        let options = Options {
            cache_dir: folder.clone(),
            target: Some("cuda:sm_90".to_owned()),
            precision: crate::Precision::F16,
            records: Some("none".into()),
            ..Options::default()
        };
        with_place(LORA, &options, |place| {
            let mut candidates = crate::candidates::candidates(place, &options).unwrap();
            let all: Vec<ColumnId> =
                (0..candidates.columns.len()).map(|column| ColumnId(column as u32)).collect();
            candidates.superoptimize(place, &all, &options).unwrap();
            let columns = &candidates.columns;
            let with_choice = |column: &Column| {
                let designs = place.schedules(&[(column, Vec::new())], &options).unwrap().remove(0);
                (column.substitute.is_some() && designs.len() == 1 && designs[0].len() == 3)
                    .then_some(designs)
            };
            let (column, designs) = columns
                .iter()
                .enumerate()
                .find_map(|(at, column)| Some((at, with_choice(column)?)))
                .expect("one of 64 blocks");
            let names: Vec<&str> = designs[0].iter().map(|kernel| kernel.design.schedule.as_str()).collect();
            assert!(
                names[0].ends_with("2 tasks a block, few rows in boxes")
                    && names[1].ends_with("1 task a block"),
                "{names:?}"
            );

            let database = Database::open(&options.cache_dir).unwrap();
            let source = Figures::Here { database: Some(database) };
            let timer = Timer {
                place,
                columns,
                signatures: &candidates.signatures,
                options: &options,
                source,
                deadline: Instant::now(),
            };
            let times = [9.0, 6.0, 7.0];
            if let Figures::Here { database: Some(database) } = &timer.source {
                for (name, time) in names.iter().zip(times) {
                    database.put(&timer.key(column, Some(name)).unwrap(), &time).unwrap();
                }
            }
            assert_eq!(timer.measure(&[column]).unwrap(), [Some(6.0)]);
            let choice = Choice {
                columns: vec![ColumnId(column as u32)],
                ..solve(&[self::column(0, 0, 1, 1.0)], &[1.0], 1)
            };
            let mut measured = Measured::default();
            timer.schedules(&choice, &mut measured).unwrap();
            let signature = &candidates.signatures[columns[column].kernel.unwrap()];
            assert_eq!(measured.schedules[signature], [names[1]]);

            // The plan's kernel is that one; a schedule that is not there any more counts as the preferred one.
            for (noted, taken) in [(names[1], names[1]), ("gone", names[0])] {
                measured.schedules.insert(signature.clone(), vec![noted.to_owned()]);
                let Column { candidate, substitute, .. } = &columns[column];
                let chosen =
                    crate::remember::Chosen { candidate: candidate.clone(), substitute: substitute.clone() };
                let made = crate::implement::implement(place, vec![chosen], &measured, &options).unwrap();
                let made = made.unwrap_or_else(|unserved| panic!("{unserved:?}"));
                assert_eq!(made.kernels[0].design.schedule, taken);
            }
        });
        let _ = std::fs::remove_dir_all(&folder);
    }
}
