//! Expected times, when failures come at random and independently of one another. All times in one unit.

/// Coordinated waves: all ranks return to the last one. With two levels, some failures take those images, too, and all
/// return to the last wave that is also elsewhere (Moody 2010, for two levels). With one level it is Daly 2006, equation
/// 20.
#[derive(Debug, Clone, Copy)]
pub struct Waves {
    /// Computing from the end of a wave to the next.
    pub interval: f64,
    /// Of a wave: the program stands still so long.
    pub cost: f64,
    /// Each so many waves one also goes elsewhere, for so much more.
    pub period: u32,
    pub more: f64,
    /// Failures in a unit of time: those from which the last wave brings the job back, and those that need the other.
    pub rates: [f64; 2],
    /// From the failure until all ranks go on. A failure meanwhile begins that anew.
    pub returns: [f64; 2],
}

/// The chance of no failure, and the mean time until one, or the end.
fn passing(time: f64, rate: f64) -> (f64, f64) {
    let none = (-rate * time).exp();
    (
        none,
        if rate > 0.0 {
            -(-rate * time).exp_m1() / rate
        } else {
            time
        },
    )
}

impl Waves {
    /// How long `work` takes.
    pub fn time(&self, work: f64) -> f64 {
        let rate: f64 = self.rates.iter().sum();
        let share = self.rates.map(|one| if rate > 0.0 { one / rate } else { 0.0 });
        let (none_in_return, in_return) = passing(self.returns[0], rate);
        let (none_in_far, in_far) = passing(self.returns[1], rate);
        // Of a return to the last wave, over its repetitions.
        let ends = 1.0 - (1.0 - none_in_return) * share[0];
        let far_meanwhile = (1.0 - none_in_return) * share[1] / ends;
        // The time from here to the end of the period is `fixed`, and `factor` times that from a failure of the second
        // kind on. From the last wave of the period backwards:
        let (mut fixed, mut factor) = (0.0, 0.0);
        for wave in 0..self.period {
            let length = self.interval + self.cost + if wave == 0 { self.more } else { 0.0 };
            let (none, before) = passing(length, rate);
            let fails = 1.0 - none;
            let again = 1.0 - fails * share[0] * none_in_return / ends;
            fixed = (before + none * fixed + fails * share[0] * in_return / ends) / again;
            factor = (none * factor + fails * (share[0] * far_meanwhile + share[1])) / again;
        }
        let far = in_far / none_in_far;
        let period = (fixed + factor * far) / (1.0 - factor);
        let time = period * work / (self.interval * f64::from(self.period));
        if time.is_finite() && time > 0.0 {
            time
        } else {
            f64::INFINITY
        }
    }
}

/// Message logging: only failed ranks go back, to their own images, and repeat what they did; the others wait. Nothing
/// else is lost, so failures add up.
#[derive(Debug, Clone, Copy)]
pub struct Logging {
    /// Computing of a rank from one image to the next.
    pub interval: f64,
    pub cost: f64,
    pub rate: f64,
    /// Until the failed ranks begin to repeat.
    pub restart: f64,
    /// To repeat work takes this part of its time.
    pub replay: f64,
}

impl Logging {
    pub fn time(&self, work: f64) -> f64 {
        let undisturbed = work * (1.0 + self.cost / self.interval);
        let lost = self.restart + self.replay * self.interval / 2.0;
        let goes_on = 1.0 - self.rate * lost;
        if goes_on > 0.0 {
            undisturbed / goes_on
        } else {
            f64::INFINITY
        }
    }
}

/// A job of this time, when failures at this rate let it begin again after `restart`.
pub fn from_the_beginning(time: f64, rate: f64, restart: f64) -> f64 {
    // 0 × ∞ is not a number.
    if rate * time < 1e-12 || time.is_infinite() {
        return time;
    }
    (rate * time).exp_m1() * (1.0 / rate + restart)
}

/// The least value of a function with one minimum, and where it is, from `low` to `high` on a logarithmic scale.
pub fn least(low: f64, high: f64, value: impl Fn(f64) -> f64) -> (f64, f64) {
    const GOLDEN: f64 = 0.618_033_988_75;
    let (mut low, mut high) = (low.ln(), high.max(low).ln());
    let between = |low: f64, high: f64, part: f64| low + (high - low) * part;
    // Where nothing ends the way leads to the left: to shorter intervals.
    for _ in 0..60 {
        let (left, right) = (between(low, high, 1.0 - GOLDEN), between(low, high, GOLDEN));
        match value(left.exp()) <= value(right.exp()) {
            true => high = right,
            false => low = left,
        }
    }
    let at = low.exp();
    (at, value(at))
}
