//go:build !windows

package dir

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// writerVariable makes the test binary a writer: directory and name.
const writerVariable = "EMITD_TEST_BLOB_DIR_WRITER"

func TestMain(m *testing.M) {
	if path, name, ok := strings.Cut(os.Getenv(writerVariable), "\n"); ok {
		fmt.Fprintln(os.Stderr, writeUntilKilled(path, name))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeUntilKilled appends marks to one object, creates objects of its own, and prints each write
// that is acknowledged.
func writeUntilKilled(path, name string) error {
	b, err := Open(Config{Path: path, NoSync: true})
	if err != nil {
		return err
	}
	ctx := context.Background()
	for n := 0; ; n++ {
		mark := fmt.Sprintf("%s.%d", name, n)
		for {
			o, err := b.Read(ctx, "chain/HEAD")
			if err != nil {
				return err
			}
			if _, err = b.Replace(ctx, "chain/HEAD", append(o.Data, " "+mark...), o.Version); err == nil {
				break
			}
			if !errors.Is(err, blob.ErrChanged) || !blob.NotApplied(err) {
				return err
			}
		}
		if _, err := b.Create(ctx, "slots/"+mark, []byte(mark)); err != nil {
			return err
		}
		fmt.Println(mark)
	}
}

// TestProcessesKilled: several processes write one bucket and are killed -9 repeatedly. Each
// acknowledged write is there, once.
func TestProcessesKilled(t *testing.T) {
	t.Parallel()
	b, err := Open(Config{Path: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(t.Context(), "chain/HEAD", []byte("begin")); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	var acknowledged []string
	for w := range 3 {
		all.Go(func() {
			for life := range 7 {
				marks := oneLife(t, b.root, fmt.Sprintf("w%d-%d", w, life))
				mu.Lock()
				acknowledged = append(acknowledged, marks...)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	checkMarks(t, b, acknowledged)
}

// oneLife runs a writer until it has acknowledged a few marks, kills it at any moment, and returns
// what it acknowledged.
func oneLife(t *testing.T, root, name string) (marks []string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), writerVariable+"="+root+"\n"+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return nil
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if marks = append(marks, lines.Text()); len(marks) == 10 {
			_ = cmd.Process.Kill() // and read the rest of its earlier output
		}
	}
	_ = cmd.Wait()
	if len(marks) < 10 {
		t.Errorf("%s ended after %d marks", name, len(marks))
	}
	return marks
}

func checkMarks(t *testing.T, b *Bucket, acknowledged []string) {
	t.Helper()
	o, err := b.Read(t.Context(), "chain/HEAD")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, mark := range strings.Fields(string(o.Data)) {
		found[mark]++
	}
	for _, mark := range acknowledged {
		if found[mark] != 1 {
			t.Errorf("acknowledged mark %s is %d times in the chain", mark, found[mark])
		}
		if _, err := b.Read(t.Context(), "slots/"+mark); err != nil {
			t.Errorf("acknowledged slot %s: %v", mark, err)
		}
	}
	for mark, n := range found {
		if n != 1 {
			t.Errorf("mark %s is %d times in the chain", mark, n)
		}
	}
	t.Logf("%d acknowledged, %d in the chain, %d files in the directory of the versions",
		len(acknowledged), len(found)-1, len(files(t, versions(b.path("chain/HEAD")))))
}
