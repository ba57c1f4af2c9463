// Package cputime tells benchmarks what a process has used of the processors: on a machine that does
// other things as well, that says more than the time that passed.
package cputime
