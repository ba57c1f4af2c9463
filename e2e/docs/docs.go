// Package docs tests the documents: every command in README and docs is run, in the order of the
// page, as a reader would; every configuration is one that emitd takes; every Go snippet stands line
// by line in a program that is built.
package docs
