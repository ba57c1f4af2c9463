// Package cputime measures for benchmarks how much processor time a process has used. On a machine
// that also does other things, that says more than the elapsed time.
package cputime
