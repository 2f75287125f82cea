//! The call `ShouldRateLimit`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::try_join_all;
use metrics::counter;
use tonic::{Request, Response, Status};
use tower_throttle::Decision;
use tower_throttle_redis::RedisError;

use crate::config::{Rate, Unit};
use crate::limiter::{Backend, Limiter};
use crate::protocol::common::RateLimitDescriptor;
use crate::protocol::common::rate_limit_descriptor::RateLimitOverride;
use crate::protocol::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::protocol::rate_limit_service_server::RateLimitService;
use crate::protocol::{HeaderValue, RateLimitRequest, RateLimitResponse};
use crate::rules::{Rule, Rules};

/// The maximum number of overrides that are kept. An override is a limit in a request. Each rate of an override needs
/// memory, so if there are more rates, the oldest rate is dropped, together with its counts in memory.
const MAX_OVERRIDES: usize = 1_000;

/// The maximum number of descriptors in a request. The descriptors of a request are decided at the same time. With
/// Redis, many of them at once would make the calls of other requests late.
pub(crate) const MAX_DESCRIPTORS: usize = 100;

/// The maximum number of entries in a descriptor.
pub(crate) const MAX_ENTRIES: usize = 100;

/// The service. Clones share all counts.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    backend: Backend,
    rules: RwLock<Arc<Rules>>,
    overrides: Mutex<Overrides>,
}

/// The limiters of the overrides, by rate. A rate that admits nothing has no limiter.
#[derive(Debug, Default)]
struct Overrides {
    limiters: HashMap<Rate, Option<Limiter>>,
    /// The rates in the order of their first requests.
    order: VecDeque<Rate>,
}

/// The limit of one descriptor of a request.
enum Applied {
    /// No limit applies: no file has a limit for the descriptor, or another limit of the request replaces that limit.
    Nothing,
    Rule(Arc<Rule>),
    /// A limit in the request itself.
    Override(Rate, Option<Limiter>),
}

/// The answer for one descriptor.
struct Answer {
    status: DescriptorStatus,
    retry_after: Option<Duration>,
}

impl Service {
    /// Creates a service without limits.
    pub(crate) fn new(backend: Backend) -> Self {
        let shared = Shared { backend, rules: RwLock::default(), overrides: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the storage of the counts.
    pub(crate) fn backend(&self) -> &Backend {
        &self.shared.backend
    }

    /// Returns the limits in force.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.shared.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the limits.
    pub(crate) fn set_rules(&self, rules: Rules) {
        *self.shared.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    /// Returns the limit of each descriptor of a request.
    fn applied(&self, request: &RateLimitRequest) -> Result<Vec<Applied>, Status> {
        let rules = self.rules();
        let find = |descriptor: &RateLimitDescriptor| match &descriptor.limit {
            Some(limit) if rules.has_domain(&request.domain) => self.of_request(limit),
            Some(_) => Ok(Applied::Nothing),
            None => Ok(match rules.find(&request.domain, &descriptor.entries) {
                Some(rule) => Applied::Rule(Arc::clone(rule)),
                None => Applied::Nothing,
            }),
        };
        let mut applied = request.descriptors.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let replaced: Vec<String> = applied.iter().flat_map(Applied::replaces).cloned().collect();
        for one in &mut applied {
            if matches!(one, Applied::Rule(rule) if !rule.name.is_empty() && replaced.contains(&rule.name)) {
                *one = Applied::Nothing;
            }
        }
        Ok(applied)
    }

    fn of_request(&self, limit: &RateLimitOverride) -> Result<Applied, Status> {
        let unit = Unit::of_request(limit.unit());
        let unit =
            unit.ok_or_else(|| Status::invalid_argument("the limit of a descriptor has no known unit"))?;
        let rate = Rate { requests: limit.requests_per_unit, unit };
        let mut overrides = self.shared.overrides.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limiter) = overrides.limiters.get(&rate) {
            return Ok(Applied::Override(rate, limiter.clone()));
        }
        let name = format!("override {}/{:?}", rate.requests, rate.unit);
        let limiter = rate.quota().map(|quota| self.shared.backend.limiter(&name, quota));
        let limiter = limiter.transpose().map_err(unavailable)?;
        overrides.limiters.insert(rate, limiter.clone());
        overrides.order.push_back(rate);
        if overrides.order.len() > MAX_OVERRIDES
            && let Some(oldest) = overrides.order.pop_front()
        {
            overrides.limiters.remove(&oldest);
        }
        Ok(Applied::Override(rate, limiter))
    }
}

fn unavailable(error: RedisError) -> Status {
    counter!("ratelimit_store_errors_total").increment(1);
    Status::unavailable(error.to_string())
}

impl Applied {
    fn replaces(&self) -> &[String] {
        match self {
            Self::Rule(rule) => &rule.replaces,
            _ => &[],
        }
    }

    async fn decide(&self, key: &str, hits: u64) -> Result<Answer, Status> {
        let (path, name, shadow, rate, limiter) = match self {
            Self::Nothing => return Ok(Answer::unlimited(0)),
            Self::Override(rate, limiter) => ("override", "", false, rate, limiter),
            Self::Rule(rule) => match &rule.limit {
                None => {
                    count(&rule.path, "ok");
                    return Ok(Answer::unlimited(u32::MAX));
                }
                Some(limit) => {
                    (rule.path.as_str(), rule.name.as_str(), rule.shadow, &limit.rate, &limit.limiter)
                }
            },
        };
        let decision = match limiter {
            Some(limiter) => Some(limiter.check(key, hits).await.map_err(unavailable)?),
            None => None,
        };
        let allowed = decision.as_ref().is_some_and(Decision::is_allowed);
        count(
            path,
            if allowed {
                "ok"
            } else if shadow {
                "shadow"
            } else {
                "over_limit"
            },
        );
        let code = if allowed || shadow { Code::Ok } else { Code::OverLimit };
        let reset_after = decision.as_ref().map(Decision::reset_after);
        let status = DescriptorStatus {
            code: code.into(),
            current_limit: Some(RateLimit {
                name: name.to_owned(),
                requests_per_unit: rate.requests,
                unit: rate.unit.of_status().into(),
            }),
            limit_remaining: decision
                .filter(Decision::is_allowed)
                .map_or(0, |decision| whole(decision.remaining())),
            duration_until_reset: reset_after.and_then(|reset_after| reset_after.try_into().ok()),
            quota: None,
        };
        let retry_after =
            decision.filter(|_| code == Code::OverLimit).and_then(|decision| decision.retry_after());
        Ok(Answer { status, retry_after })
    }
}

impl Answer {
    fn unlimited(limit_remaining: u32) -> Self {
        let status =
            DescriptorStatus { code: Code::Ok.into(), limit_remaining, ..DescriptorStatus::default() };
        Self { status, retry_after: None }
    }
}

fn whole(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

fn count(path: &str, outcome: &'static str) {
    counter!("ratelimit_decisions_total", "limit" => path.to_owned(), "outcome" => outcome).increment(1);
}

/// Returns the key of the domain and the entries of a descriptor. Different entries have different keys.
fn key(domain: &str, descriptor: &RateLimitDescriptor) -> String {
    let mut key = format!("{}:{domain}", domain.len());
    for entry in &descriptor.entries {
        for part in [&entry.key, &entry.value] {
            key.push_str(&format!(" {}:{part}", part.len()));
        }
    }
    key
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        if request.domain.is_empty() {
            return Err(Status::invalid_argument("the domain is empty"));
        }
        if request.descriptors.is_empty() {
            return Err(Status::invalid_argument("there is no descriptor"));
        }
        if request.descriptors.len() > MAX_DESCRIPTORS {
            return Err(Status::invalid_argument(format!(
                "there are more than {MAX_DESCRIPTORS} descriptors"
            )));
        }
        if request.descriptors.iter().any(|descriptor| descriptor.entries.len() > MAX_ENTRIES) {
            return Err(Status::invalid_argument(format!(
                "a descriptor has more than {MAX_ENTRIES} entries"
            )));
        }
        let applied = self.applied(&request)?;
        let all_hits = u64::from(request.hits_addend.max(1));
        let answers = applied.iter().zip(&request.descriptors).map(|(applied, descriptor)| async {
            let hits = descriptor.hits_addend.unwrap_or(all_hits);
            applied.decide(&key(&request.domain, descriptor), hits).await
        });
        let answers = try_join_all(answers).await?;
        let over_limit = answers.iter().any(|answer| answer.status.code() == Code::OverLimit);
        let retry_after = answers.iter().filter_map(|answer| answer.retry_after).max();
        let header = retry_after.map(|wait| HeaderValue {
            key: "retry-after".to_owned(),
            // The wait is rounded up, so that the request is admitted after this time.
            value: (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).to_string(),
            ..HeaderValue::default()
        });
        Ok(Response::new(RateLimitResponse {
            overall_code: if over_limit { Code::OverLimit } else { Code::Ok }.into(),
            statuses: answers.into_iter().map(|answer| answer.status).collect(),
            response_headers_to_add: header.into_iter().collect(),
            ..RateLimitResponse::default()
        }))
    }
}
