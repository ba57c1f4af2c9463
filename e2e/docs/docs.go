// Package docs tests the documents. Every command in README and docs is run, in the order of the page, as
// a reader would. Every configuration must be valid for emitd. Every Go snippet must appear line by line
// in a program that is built.
package docs
