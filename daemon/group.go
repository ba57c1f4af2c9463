package daemon

import (
	"fmt"
	"regexp"
	"strings"
)

var validGroup = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ValidateGroup reports why a text cannot name a group of nodes, or nil.
func ValidateGroup(group string) error {
	if !validGroup.MatchString(group) {
		return fmt.Errorf("group %.80q does not match %s (lower-case letters, digits and ._-)", group, validGroup)
	}
	return nil
}

// In returns the ID that the daemon has in the cluster if nodes of a group declare it: <id>@<group>. Without a group it
// is the ID itself.
func (id ID) In(group string) ID {
	if group == "" {
		return id
	}
	return id + "@" + ID(group)
}

// Group returns the group whose nodes declare the daemon and run it; empty if it is of no group.
func (id ID) Group() string {
	_, group, _ := strings.Cut(string(id), "@")
	return group
}
