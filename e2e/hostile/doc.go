// Package hostile runs a node under a memory limit while hostile clients attack it in many ways. Honest
// clients must be served as if nothing happened.
package hostile
