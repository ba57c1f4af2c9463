//go:build planted

package planted

import "testing"

func TestOneSwitchAtATime(t *testing.T) { //nolint:paralleltest // the switch is of the process
	defer On("")
	On(PlainGeneration)
	if Asked() {
		t.Error("asked before anybody asked")
	}
	if Bug(SameGeneration) || Asked() {
		t.Error("another bug is on")
	}
	if !Bug(PlainGeneration) || !Asked() {
		t.Error("the bug is not on, or nobody noticed the question")
	}
	On("")
	if Bug(PlainGeneration) || Bug("") {
		t.Error("a bug is on after all were switched off")
	}
	defer func() {
		if recover() == nil {
			t.Error("an unlisted name was accepted")
		}
	}()
	On("no such bug")
}
