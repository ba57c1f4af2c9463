package cli

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// changeTokens runs a command about the tokens of a file.
func changeTokens(t *testing.T, file string, in io.Reader, args ...string) string {
	t.Helper()
	var out, text bytes.Buffer
	args = slices.Concat([]string{"token"}, args, []string{"--file", file, "--timeout", "1m"})
	if code := Main(t.Context(), args, Streams{In: in, Out: &out, Err: &text}); code != 0 {
		t.Errorf("%s: code %d: %s", strings.Join(args, " "), code, text.String())
	}
	return out.String()
}

// tokenNames returns the sorted names of a file's tokens.
func tokenNames(t *testing.T, file string) []string {
	t.Helper()
	return slices.Sorted(slices.Values(strings.Fields(changeTokens(t, file, nil, "ls", "-o", "name"))))
}

// TestTokensChangeAtOnce checks that changes of the access file at the same time are all made.
func TestTokensChangeAtOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	const many = 16
	for _, verb := range [][]string{{"new"}, {"revoke", "--yes"}} {
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() { changeTokens(t, file, nil, append(verb, fmt.Sprint("t", i))...) })
		}
		all.Wait()
		want := many
		if verb[0] == "revoke" {
			want = 0
		}
		if got := tokenNames(t, file); len(got) != want {
			t.Errorf("%d times %s at once: the file has %q", many, verb[0], got)
		}
	}
	if left, err := filepath.Glob(file + ".*"); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}
