package postgres

import "testing"

// All that ask before a reading begins share it. Who asks later gets the next one, which has what was written meanwhile.
func TestListsAreSharedUntilTheyBegin(t *testing.T) {
	t.Parallel()
	var l memberLists
	a, b := l.join(), l.join()
	if a != b {
		t.Error("two that asked before the reading began do not share it")
	}
	if r := l.begin(); r != a {
		t.Error("another reading begins")
	}
	c := l.join()
	if c == a {
		t.Error("who asked after the beginning shares the reading, and may miss what it has written")
	}
	if r := l.begin(); r != c || !l.reading {
		t.Error("the next reading does not follow")
	}
	if r := l.begin(); r != nil || l.reading {
		t.Error("a reading begins for which nobody waits")
	}
}

// A registration is one of several while another one is under way.
func TestRegistrationsAreCounted(t *testing.T) {
	t.Parallel()
	var l memberLists
	if l.enter() {
		t.Error("the first registration is called one of several")
	}
	if !l.enter() {
		t.Error("the second registration is called alone")
	}
	l.leave()
	l.leave()
	if l.enter() {
		t.Error("a later registration is called one of several")
	}
}
