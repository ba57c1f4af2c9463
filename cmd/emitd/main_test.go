package main

import (
	"testing"

	"github.com/emitd/emitd/cmd/emitd/internal/story"
)

func TestMain(m *testing.M) { story.Main(m) }

// TestStories runs the scripts in testdata against the real program, on SQLite.
func TestStories(t *testing.T) {
	t.Parallel()
	story.Run(t, "testdata", nil)
}
