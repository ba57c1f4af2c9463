// Package queue is the contract of a job queue that needs no storage but a bucket: the jobs, the
// calls ([Service]), the settings of a queue and the kinds of refusals ([Tag]). Package broker
// serves queues as the agent of a built-in daemon, package api offers them over the network,
// package client calls them there, and package worker runs jobs. Package queuetest is a queue in
// memory for tests.
//
// # Terms
//
// A queue has one or more shards. A shard is an independent part of a queue and one unit of the
// daemon emit:queue/<queue>; the cluster assigns it to one node at a time. The broker on that node
// serves it. A job is submitted, claimed by a worker, and settled: completed, failed, released or
// extended. A claim is a worker's temporary, exclusive right to a job; it ends after the visibility
// timeout unless the worker extends it. Each claim of a job counts as a delivery; each execution
// that began counts as an attempt. A dead job (dead letter) is tried no more and is kept for
// inspection. The terms are those of docs/glossary.md.
//
// # What is promised
//
//  1. An acknowledged write is durable. A job that was acknowledged is never lost, whatever
//     happens to brokers: it ends completed, dead or cancelled.
//  2. A job is completed at most once. Only the claim that completed it gets the acknowledgement,
//     and that claim may repeat the call.
//  3. One worker holds a job at a time, per (job, epoch, attempt). A claim ends when it is
//     settled, when it expires, or when an operator ends the job. From then on, calls that use it
//     are refused with [StaleClaim].
//  4. Submitting an ID or key again within the deduplication window changes nothing. The window is
//     set per queue. It covers live jobs always, and ended jobs for 10 minutes or up to 1,000,000
//     IDs by default, whichever is less.
//  5. A shard hands out the job with the highest priority first, and among equals the oldest. A
//     retried job keeps its place unless its policy puts it at the end.
//  6. A negative answer (StaleClaim, JobNotFound) comes only from a broker that owns the shard at
//     that moment.
//
// Jobs are executed at least once. With soft claims, a job that was claimed within the last second
// before its broker crashed may be claimed again, and either worker may complete it first. With
// [DurableClaims], or after a clean hand-over, this does not happen. A claimed job begins at most
// max-attempts attempts, plus one for each such crash.
//
// # Attempts
//
// An attempt is counted at the first proof that it began (heartbeat, complete, fail), or when a
// claim expires. A release counts none, and takes none back: an execution that was extended and then
// released has been an attempt. A job is dead after max-attempts attempts or three times as many deliveries. It is
// kept, with the cause, until it is redriven or purged. A job becomes a dead letter only when the record of
// its death is durable.
//
// # Not promised
//
// There is no order across shards. An ID is unique within its group only: the same ID in another
// group may be another job. If a call to submit fails for any reason but a mistake of the caller, some of its
// jobs may have been submitted. The caller can repeat the call with the same IDs.
package queue
