// Package house holds the test of the house rules: which package may import which, which
// packages are pure, and which heavy modules never reach a user who embeds the library.
package house
