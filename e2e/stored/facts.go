// Package stored checks that what earlier releases have stored is read unchanged.
//
// Below testdata each release has a folder with three fixtures: the stores of a cluster that the release's own
// binary has run, and facts.json, which says what that binary read in them at the end. The test reads the fixture
// with the code of today and compares, and then lets a node of today go on with a copy. Program make adds the
// fixtures of a release; testdata/README.md says how.
package stored

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Kind is where a fixture's cluster has its store.
type Kind string

// The kinds of fixture. SQLite and Postgres have an outbox, Bucket has queues.
const (
	SQLite   Kind = "sqlite"
	Postgres Kind = "postgres"
	Bucket   Kind = "bucket"
)

// Kinds are all of them.
var Kinds = []Kind{SQLite, Postgres, Bucket}

// The files of a fixture.
const (
	FactsFile = "facts.json"
	DataFile  = "data.tar.gz" // the SQLite files, or the directories of the bucket
	DumpFile  = "dump.sql"    // of Postgres
)

// ObjectPayload is a payload that the queue keeps as an object of its own, because it is too large for the log.
var ObjectPayload = strings.Repeat("payload ", 40_000)

// Facts are what the release read in its own fixture.
type Facts struct {
	Observed json.RawMessage            `json:"observed"`        // the output of program observe
	Commands map[string]json.RawMessage `json:"commands"`        // the output of reading commands, by their arguments
	Token    string                     `json:"token,omitempty"` // of the claim that is open
}

// Reads returns the commands that read the store, and those that ask a node about the queues.
func (k Kind) Reads() (offline, online [][]string) {
	offline = [][]string{{"node", "ls", "--all"}, {"daemon", "ls", "--all"}, {"events", "--kind", "leader.*"}, {"leader", "show"}, {"leader", "history"}}
	if k == Bucket {
		return offline, [][]string{{"queue", "ls"}, {"queue", "peek", "mail", "--payload"}, {"queue", "stats", "mail"}}
	}
	return append(offline,
		[]string{"outbox", "stats"}, []string{"outbox", "ls", "holds"}, []string{"outbox", "ls", "skips"},
		[]string{"outbox", "show", "holds", "2"}, []string{"outbox", "show", "skips", "2"}), nil
}

// Locations says where a fixture's parts are while nodes use them.
type Locations struct {
	Store string // URL
	Args  []string
}

// Files returns the locations of a fixture whose files are in dir.
func (k Kind) Files(dir string) Locations {
	if k == Bucket {
		url := "file://" + filepath.Join(dir, "cluster")
		return Locations{Store: url, Args: []string{"--store", url, "--objects", "file://" + filepath.Join(dir, "queues")}}
	}
	url := "sqlite://" + filepath.Join(dir, "cluster.db")
	return Locations{Store: url, Args: []string{"--store", url, "--outbox.url", "sqlite://" + filepath.Join(dir, "outbox.db")}}
}

// Database returns the locations of a fixture in a Postgres database.
func Database(url string) Locations {
	return Locations{Store: url, Args: []string{"--store", url, "--outbox.schema", "outbox"}}
}

// Config is the configuration of a node. The webhook is where both subscriptions of the outbox deliver: one holds
// the key of a refused message, the other makes that message a dead letter.
func (k Kind) Config(webhook string) string {
	text := `cluster: stored
profile: fast
daemons:
  exec:
    - {id: "acme:steady", command: [sleep, "100000"], instances: 2}
    - {id: "acme:broken", command: ["false"], max_failures: 1}
`
	if k == Bucket {
		return text
	}
	return text + fmt.Sprintf(`outbox:
  retention: 1000000h
  subscriptions:
    - {name: holds, topics: ["orders.*"], sink: {kind: webhook, url: %[1]q}}
    - {name: skips, topics: ["orders.*"], sink: {kind: webhook, url: %[1]q}, policy: skip}
`, webhook)
}

// Pack returns the files of a folder as a compressed archive, without owners and times.
func Pack(dir string) ([]byte, error) {
	var b bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(compressed)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		head := &tar.Header{Name: filepath.ToSlash(name), Mode: int64(info.Mode().Perm()), Size: int64(len(data))}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		_, err = archive.Write(data)
		return err
	})
	err = errors.Join(err, archive.Close(), compressed.Close())
	return b.Bytes(), err
}

// Unpack writes the files of an archive into a folder.
func Unpack(packed []byte, dir string) error {
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for archive := tar.NewReader(plain); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := root.MkdirAll(filepath.Dir(head.Name), 0o755); err != nil {
			return err
		}
		if err := root.WriteFile(head.Name, data, fs.FileMode(head.Mode)); err != nil {
			return err
		}
	}
}
