//! TMA loads in the interpreter: what they copy, and the full and empty mbarriers that count them.

use crate::cta::{Location, SWIZZLE_ALIGNMENT, SWIZZLE_ROW, swizzled};
use crate::interp::in_flight::CopyInFlight;
use crate::interp::{ExecError, ThreadInterpreter};
use crate::program::ThreadProgram;
use crate::tma::TensorMapId;
use orch_compute::expr::ExprId;
use orch_compute::expr::scalar::Number;

/// A full mbarrier, which counts TMA loads that arrive.
pub(crate) struct FullBarrier {
    /// The current phase.
    phase: i64,
    /// TMA loads that complete a phase.
    loads: usize,
    /// The TMA loads of the phase that have been issued.
    copies: Vec<CopyInFlight>,
    /// The time of the last arrival at an empty mbarrier for which the last of them waited.
    waited_for: u32,
}

/// The empty mbarriers of a CTA.
pub(crate) struct EmptyBarriers {
    /// The next phase of each, and the time of the last arrival.
    empty: Vec<(i64, u32)>,
    /// The time of the last arrival for which TMA loads wait.
    waited_for: u32,
    /// The time of the last arrival that is confirmed: all threads have waited for a TMA load that waited for it.
    confirmed: u32,
}

impl EmptyBarriers {
    pub(crate) fn of(program: &ThreadProgram) -> EmptyBarriers {
        EmptyBarriers { empty: vec![(0, 0); program.mbarriers.empty], waited_for: 0, confirmed: 0 }
    }

    /// The time of the last arrival for which TMA loads wait.
    pub(crate) fn waited_for(&self) -> u32 {
        self.waited_for
    }

    /// All threads arrive at an empty mbarrier.
    pub(crate) fn arrive(&mut self, mbarrier: i64, phase: i64, time: u32) -> Result<(), ExecError> {
        let confirmed = self.confirmed;
        let (next, last) = self.mbarrier(mbarrier)?;
        if phase != *next {
            return Err(ExecError::divergence(&format!(
                "arrival for phase {phase} of an empty mbarrier in its phase {next}"
            )));
        }
        if *last > confirmed {
            return Err(ExecError::divergence(
                "arrival at an empty mbarrier before loads that waited for its last phase were waited for",
            ));
        }
        (*next, *last) = (phase + 1, time);
        Ok(())
    }

    /// TMA loads wait for an empty mbarrier; returns the time of the last arrival.
    pub(crate) fn wait(&mut self, mbarrier: i64, phase: i64) -> Result<u32, ExecError> {
        let (next, last) = self.mbarrier(mbarrier)?;
        if phase != *next - 1 {
            return Err(ExecError::divergence(&format!(
                "wait for phase {phase} of an empty mbarrier before its phase {next}"
            )));
        }
        let last = *last;
        self.waited_for = self.waited_for.max(last);
        Ok(last)
    }

    /// All threads have waited for a TMA load that waited for the arrivals up to this time.
    pub(crate) fn confirm(&mut self, waited_for: u32) {
        self.confirmed = self.confirmed.max(waited_for);
    }

    fn mbarrier(&mut self, number: i64) -> Result<&mut (i64, u32), ExecError> {
        let count = self.empty.len();
        let mbarrier = usize::try_from(number).ok().and_then(|number| self.empty.get_mut(number));
        mbarrier.ok_or_else(|| {
            ExecError::divergence(&format!("there is no mbarrier {number}, there are {count}"))
        })
    }
}

impl FullBarrier {
    /// The full mbarriers of a CTA.
    pub(crate) fn all(program: &ThreadProgram) -> Vec<FullBarrier> {
        let mbarrier =
            |_| FullBarrier { phase: 0, loads: program.mbarriers.loads, copies: Vec::new(), waited_for: 0 };
        (0..program.mbarriers.full).map(mbarrier).collect()
    }

    /// Counts a TMA load that waits for the arrivals at empty mbarriers up to a time.
    pub(crate) fn add(&mut self, copy: CopyInFlight, waited_for: u32) -> Result<(), ExecError> {
        if self.copies.len() == self.loads {
            return Err(ExecError::divergence(
                "a TMA load for the next phase of a full mbarrier before the current phase was waited for",
            ));
        }
        self.copies.push(copy);
        self.waited_for = waited_for;
        Ok(())
    }

    /// Completes a phase: returns its TMA loads, and the time of the arrivals at empty mbarriers for which they waited.
    pub(crate) fn end_phase(&mut self, phase: i64) -> Result<(Vec<CopyInFlight>, u32), ExecError> {
        if phase != self.phase {
            return Err(ExecError::divergence(&format!(
                "wait for phase {phase} of a full mbarrier in its phase {}",
                self.phase
            )));
        }
        if self.copies.len() < self.loads {
            return Err(ExecError::divergence(
                "wait for a full mbarrier before all loads of its phase were issued",
            ));
        }
        self.phase += 1;
        Ok((std::mem::take(&mut self.copies), self.waited_for))
    }
}

/// The full mbarrier of this number.
pub(crate) fn full_at(mbarriers: &mut [FullBarrier], number: i64) -> Result<&mut FullBarrier, ExecError> {
    let count = mbarriers.len();
    let mbarrier = usize::try_from(number).ok().and_then(|number| mbarriers.get_mut(number));
    mbarrier
        .ok_or_else(|| ExecError::divergence(&format!("there is no mbarrier {number}, there are {count}")))
}

impl ThreadInterpreter<'_> {
    /// Issues a TMA load of a tile `[row, within]` of a tensor map.
    pub(crate) fn start_tma(
        &mut self,
        to: Location,
        map: TensorMapId,
        at: &[ExprId],
    ) -> Result<CopyInFlight, ExecError> {
        let offset = self.eval_index(to.offset)?;
        if offset % SWIZZLE_ALIGNMENT as i64 != 0 {
            return Err(ExecError::divergence("a TMA tile does not start at a multiple of 1024 bytes"));
        }
        let first: Result<Vec<i64>, ExecError> = at.iter().map(|&at| self.eval_index(at)).collect();
        let (first, map) = (first?, &self.program.tensor_maps[map.index()]);
        let mut values = vec![Number::Float(0.0); map.tile_elems()];
        for row in 0..map.rows {
            for within in 0..SWIZZLE_ROW {
                let mut coordinates = first.clone();
                coordinates[0] += within as i64;
                coordinates[1] += row as i64;
                if let Some(from) = map.place(&coordinates) {
                    self.report.loads += 1;
                    values[swizzled(map.rows, row, within)] = self.memory.load(map.buffer, from)?;
                }
            }
        }
        for at in offset..offset + values.len() as i64 {
            self.memory.start_tma(to.buffer, at)?;
        }
        Ok(CopyInFlight { buffer: to.buffer, offset, values })
    }

    /// Writes TMA loads that have arrived.
    pub(crate) fn finish_loads(&mut self, copies: Vec<CopyInFlight>) -> Result<(), ExecError> {
        for CopyInFlight { buffer, offset, values } in copies {
            for (at, value) in (offset..).zip(values) {
                self.memory.finish_tma(buffer, at, value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{BufferData, ExecError, ExecOptions, interpret, parse_thread, validate_thread};
    use orch_ir::{DType, Tensor};

    /// TMA loads of 64 rows of an array of 60 rows of 128 elements, `0, 1, 2, ..`.
    const HEADER: &str = "program k, 2 tasks task: i64 [0..=1]\n  \
        cta 64 threads thread: i64 [0..=63], clusters of 2\n  input x: f16[8192]\n  output y: f32[128]\n  \
        shared s: f16[8256]\n  tensor_map v: x[512], extents 128 60, strides 128, 64 rows\n  mbarriers 2 full of 1 loads\n";
    const COPY: &str = "  tma_load s[0], v[64, (task * 8)], 0\n";
    const STORE: &str = "  y[((task * 64) + thread)] = f32(s[((thread * 64) + ((thread % 8) * 8))])\n";

    fn result(body: &str) -> Result<Vec<f64>, ExecError> {
        result_with(0, body)
    }

    /// The same with so many empty mbarriers.
    fn result_with(empty: usize, body: &str) -> Result<Vec<f64>, ExecError> {
        let mbarriers =
            if empty > 0 { format!("of 1 loads, {empty} empty") } else { "of 1 loads".to_owned() };
        let header = HEADER.replace("of 1 loads", &mbarriers);
        let program =
            parse_thread(&format!("{header}{{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(validate_thread(&program), Vec::<String>::new());
        let printed = program.to_string();
        assert_eq!(parse_thread(&printed).unwrap().to_string(), printed);
        let x: Vec<f64> = (0..8192).map(|at| f64::from(at / 128)).collect();
        let x = BufferData::from_tensor(&Tensor::from_f64(DType::F16, [x.len()], &x));
        let mut buffers = [x, BufferData::zeros(DType::F32, 128)];
        interpret(&program, &mut buffers, &ExecOptions::default())?;
        Ok(buffers[1].to_tensor([128]).unwrap().to_f64())
    }

    /// The first elements of the rows of each CTA's tile: those after the last row are zero.
    fn expected() -> Vec<f64> {
        let row = |task: usize, row: usize| if 8 * task + row < 60 { 4 + 8 * task + row } else { 0 };
        (0..128).map(|at| row(at / 64, at % 64) as f64).collect()
    }

    #[test]
    fn tiles_arrive_swizzled_with_zeros_outside() {
        assert_eq!(result(&format!("{COPY}  mbarrier_wait_full 0, 0\n{STORE}")).unwrap(), expected());
        // A full mbarrier is used again once its phase was waited for, and the memory once all threads have read it.
        let again = format!(
            "{COPY}  mbarrier_wait_full 0, 0\n  let first: f16 = s[thread]\n  barrier\n{COPY}  mbarrier_wait_full 0, 1\n{STORE}"
        );
        assert_eq!(result(&again).unwrap(), expected());
    }

    #[test]
    fn what_is_not_ordered_is_an_error() {
        let read = "  let first: f16 = s[thread]\n";
        for (body, problem) in [
            (format!("{COPY}{STORE}  mbarrier_wait_full 0, 0\n"), "also accessed by"),
            (
                format!("{COPY}  mbarrier_wait_full 0, 0\n{read}{COPY}  mbarrier_wait_full 0, 1\n"),
                "also accessed by",
            ),
            (
                format!("{COPY}  mbarrier_wait_full 0, 1\n"),
                "wait for phase 1 of a full mbarrier in its phase 0",
            ),
            (COPY.to_owned() + &COPY.replace("s[0]", "s[4096]"), "before the current phase was waited for"),
            ("  mbarrier_wait_full 1, 0\n".to_owned(), "before all loads of its phase were issued"),
            (COPY.to_owned(), "before its copies are waited for"),
            (COPY.replace(", 0\n", ", 2\n"), "there is no mbarrier 2"),
            (COPY.replace("s[0]", "s[64]"), "does not start at a multiple of 1024 bytes"),
            (COPY.replace("s[0]", "s[8192]"), "out of bounds, the buffer has 8256 elements"),
            (format!("  if (thread < 32) {{\n{COPY}  }}\n"), "some threads do not reach"),
        ] {
            let error = result(&body).unwrap_err().to_string();
            assert!(error.contains(problem), "{body}: {error}");
        }
    }

    #[test]
    fn loads_overwrite_what_was_read_before_an_arrival() {
        let read = format!("{COPY}  mbarrier_wait_full 0, 0\n  let first: f16 = s[thread]\n");
        let again = format!("{COPY}  mbarrier_wait_full 0, 1\n");
        let mbarrier = "  mbarrier_arrive_empty 0, 0\n  mbarrier_wait_empty 0, 0\n";
        assert_eq!(result_with(1, &format!("{read}{mbarrier}{again}{STORE}")).unwrap(), expected());
        // Threads arrive again once a TMA load that waited for the empty mbarrier was waited for.
        let twice = format!("{read}{mbarrier}{again}  mbarrier_arrive_empty 0, 1\n{STORE}");
        assert_eq!(result_with(1, &twice).unwrap(), expected());
        // Threads may arrive at another empty mbarrier meanwhile, which orders what was read before that arrival.
        let late =
            "  mbarrier_arrive_empty 0, 0\n  let second: f16 = s[thread]\n  mbarrier_arrive_empty 1, 0\n";
        let both = format!("{read}{late}  mbarrier_wait_empty 1, 0\n{again}{STORE}");
        assert_eq!(result_with(2, &both).unwrap(), expected());
        for (body, problem) in [
            (format!("{read}  mbarrier_arrive_empty 0, 0\n{again}"), "also accessed by"),
            (format!("{read}{late}  mbarrier_wait_empty 0, 0\n{again}"), "also accessed by"),
            (
                format!("{read}{mbarrier}  mbarrier_arrive_empty 0, 1\n{again}"),
                "before loads that waited for its last phase were waited for",
            ),
            (
                "  mbarrier_arrive_empty 0, 1\n".to_owned(),
                "arrival for phase 1 of an empty mbarrier in its phase 0",
            ),
            (
                "  mbarrier_wait_empty 0, 0\n".to_owned(),
                "wait for phase 0 of an empty mbarrier before its phase 0",
            ),
            ("  mbarrier_arrive_empty 2, 0\n".to_owned(), "there is no mbarrier 2, there are 2"),
            (format!("  if (thread < 32) {{\n{mbarrier}  }}\n"), "some threads do not reach"),
            // What threads write themselves is not ordered.
            (
                format!("{read}  s[thread] = first\n{mbarrier}  let other: f16 = s[(63 - thread)]\n"),
                "also accessed by",
            ),
            (format!("{read}  barrier\n  s[thread] = first\n{mbarrier}{again}"), "also accessed by"),
        ] {
            let error = result_with(2, &body).unwrap_err().to_string();
            assert!(error.contains(problem), "{body}: {error}");
        }
        let program = parse_thread(&format!("{HEADER}{{\n{mbarrier}}}\n")).unwrap();
        assert!(validate_thread(&program).join("; ").contains("there are no empty mbarriers"));
    }

    #[test]
    fn tensor_maps_are_encodable() {
        let problems = |header: &str, body: &str| {
            let program = parse_thread(&format!("{header}{{\n{body}}}\n"));
            validate_thread(&program.unwrap_or_else(|error| panic!("{error}"))).join("; ")
        };
        for (from, to, problem) in [
            ("x: f16", "x: f32", "of 16-bit elements"),
            ("x[512]", "x[511]", "at multiples of 16 bytes"),
            ("strides 128", "strides 132", "at multiples of 16 bytes"),
            ("extents 128 60", "extents 128 61", "ends outside of the 8192 elements of x"),
            ("extents 128 60", "extents 128 0", "extents [128, 0]"),
            ("strides 128", "strides 128 128", "2 extents and 2 strides"),
            ("64 rows", "257 rows", "257 rows"),
            ("mbarriers 2 full of 1", "mbarriers 2 full of 0", "2 full mbarriers of 0 loads"),
        ] {
            let found = problems(&HEADER.replace(from, to), "");
            assert!(found.contains(problem), "{to}: {found}");
        }
        let without = HEADER.replace("  mbarriers 2 full of 1 loads\n", "");
        assert!(problems(&without, "  mbarrier_wait_full 0, 0\n").contains("there are no full mbarriers"));
        assert!(problems(&without, COPY).contains("counted by an mbarrier"));
        let flat = COPY.replace("[64, (task * 8)]", "[64]");
        assert!(problems(HEADER, &flat).contains("as many coordinates as its tensor_map"));
        let real = COPY.replace("(task * 8)", "f32(task)");
        assert!(problems(HEADER, &real).contains("an index is f32"));
        assert!(problems(HEADER, "  grid_dependency_wait\n").is_empty());
        let early = problems(HEADER, &format!("{COPY}  grid_dependency_wait\n  mbarrier_wait_full 0, 0\n"));
        assert!(early.contains("accessed before grid_dependency_wait"), "{early}");
    }
}
