// Package bundle writes debug bundles: archives (.tar.gz) of texts that describe a cluster, for somebody who was not
// there. No text gets into a bundle without passing [Bundle.Add], which redacts secrets in it.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/admin/fault"
)

// Bundle is an archive that is being written.
type Bundle struct {
	file    *os.File
	zip     *gzip.Writer
	tar     *tar.Writer
	secrets []string
	now     time.Time
	files   int
	missing []string
	failed  error
}

// root is the directory in the archive.
const root = "emitd-debug"

// Create begins a bundle in a new file, which only its owner can read. It never overwrites a file. The secrets are
// redacted in every text, in addition to what [Redact] finds.
func Create(name string, secrets []string, now time.Time) (*Bundle, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fault.New(fault.Usage, "%s exists, and a debug bundle overwrites nothing", name).Hint("name another file with --output")
	}
	if err != nil {
		return nil, fault.New(fault.Usage, "--output: %w", err).Hint("name a file in a directory that exists and can be written")
	}
	b := &Bundle{file: f, zip: gzip.NewWriter(f), secrets: inJSON(secrets), now: now}
	b.tar = tar.NewWriter(b.zip)
	return b, nil
}

// inJSON adds the form that each secret has in JSON, if that differs.
func inJSON(secrets []string) []string {
	out := slices.Clone(secrets)
	for _, s := range secrets {
		if text, err := json.Marshal(s); err == nil && string(text) != `"`+s+`"` {
			out = append(out, strings.Trim(string(text), `"`))
		}
	}
	return out
}

// Add adds a text.
func (b *Bundle) Add(name, text string) {
	text = Redact(text, b.secrets...)
	err := b.tar.WriteHeader(&tar.Header{Name: path.Join(root, name), Mode: 0o644, Size: int64(len(text)), ModTime: b.now, Format: tar.FormatPAX})
	if err == nil {
		_, err = io.WriteString(b.tar, text)
	}
	b.files++
	b.failed = errors.Join(b.failed, err)
}

// Miss records that a text is missing, and why.
func (b *Bundle) Miss(name string, why error) {
	b.missing = append(b.missing, fmt.Sprintf("%s: %v", name, why))
}

// Missing returns how many texts are missing.
func (b *Bundle) Missing() int { return len(b.missing) }

// Close completes the file. It adds a text that names what is missing. If the file could not be written, it is removed.
func (b *Bundle) Close() (files int, err error) {
	if len(b.missing) > 0 {
		b.Add("missing.txt", strings.Join(b.missing, "\n")+"\n")
	}
	err = errors.Join(b.failed, b.tar.Close(), b.zip.Close(), b.file.Close())
	if err != nil {
		err = errors.Join(fmt.Errorf("write %s: %w", b.file.Name(), err), os.Remove(b.file.Name()))
	}
	return b.files, err
}

// secretValues match secrets in texts from elsewhere, such as errors of commands: the value after a name that says that it
// is secret, and the password in an address. The part to keep is $1.
var secretValues = []*regexp.Regexp{
	regexp.MustCompile(`(?i)((?:password|passwd|passphrase|secret|token|credential|api[_-]?key|access[_-]?key)s?\\?["']?\s*[=:]\s*\\?["']?(?:bearer\s+|basic\s+)?)[^\s"',;&\\}\])<]+`),
	regexp.MustCompile(`(?i)(authorization\\?["']?\s*[=:]\s*\\?["']?(?:[a-z]+\s+)?)[^\s"',;&\\}\])<]+`),
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[a-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/@"'\\]*:)[^\s@"'\\]+@`),
}

// Redact replaces the secrets, and what looks like one, by ***. The text stays JSON if it is.
func Redact(text string, secrets ...string) string {
	text = fault.Redact(text, secrets...)
	for i, re := range secretValues {
		with := "${1}***"
		if i == len(secretValues)-1 {
			with += "@"
		}
		text = re.ReplaceAllString(text, with)
	}
	return text
}
