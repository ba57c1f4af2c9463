// Package planted proves that the tests see each rule of the protocols broken.
//
// A rule is believed only once its test was seen to fail without it. The files in bugs list planted bugs: small
// changes of the product's source, each of which breaks one rule, and the test that must fail then. The product
// itself contains no switch. TestPlanted gives the changed files to the go command as an overlay and demands that the test
// fails. A program that the test builds has the bug, too. Bugs in bodies of functions are built into the same program, and a variable of
// the environment selects one, because a build for each would take longer than its test. Each other bug, and one that is
// chosen by its name, has a build of its own:
//
//	go test -tags planted -run TestPlanted -v ./internal/planted
//	go test -tags planted -run 'TestPlanted/term_kept_after_lost' -v ./internal/planted
//
// A bug is written like this:
//
//	== the bug's name
//	The rule that it breaks, and how.
//	internal/coordinator/sim TestStorm
//	@ storage/storage.go
//	 func NextGeneration(previous, term, highestReported int64) int64 {
//	-	return max(previous+1, term, highestReported+1)
//	+	return previous + 1
//
// The third line names the package and the test, a pattern of go test. More such lines may follow: each of these
// tests must fail. Each "@" begins one edit of a file: lines with a blank in front stay, those with "-" go, those
// with "+" come. The lines that stay or go must occur exactly once in the file; an ordinary test checks this, so that
// a bug cannot get lost when the code moves on. Lines that begin with "#" are comments. A bug that needs two edits of
// one file has two "@" lines.
//
// The method is mutation testing; see DeMillo, Lipton and Sayward, "Hints on Test Data Selection" (1978).
package planted

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

//go:embed bugs/*.txt
var texts embed.FS

// bug is one planted bug.
type bug struct {
	name   string
	breaks string // the rule that it breaks, and how
	caught []catch
	edits  []edit
}

// catch is a test that must fail.
type catch struct {
	pkg  string // the package, as a directory of the module
	test string // a pattern
}

// edit replaces the lines before, which occur once in the file, by the lines after.
type edit struct {
	file          string
	before, after string
}

// bugs reads all planted bugs.
func bugs() ([]bug, error) {
	names, err := fs.Glob(texts, "bugs/*.txt")
	if err != nil {
		return nil, err
	}
	var all []bug
	for _, name := range names {
		text, err := texts.ReadFile(name)
		if err != nil {
			return nil, err
		}
		some, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// parse reads the bugs of one file.
func parse(text string) ([]bug, error) {
	var all []bug
	for i, section := range strings.Split("\n"+text, "\n== ") {
		if i == 0 {
			continue // comments
		}
		b, err := parseBug(strings.Split(strings.TrimRight(section, "\n"), "\n"))
		if err != nil {
			return nil, fmt.Errorf("bug %d: %w", i, err)
		}
		all = append(all, b)
	}
	return all, nil
}

func parseBug(lines []string) (bug, error) {
	if len(lines) < 4 {
		return bug{}, fmt.Errorf("%q: wants a name, what it breaks, the test and an edit", lines[0])
	}
	b := bug{name: lines[0], breaks: lines[1]}
	lines = lines[2:]
	for len(lines) > 0 && !strings.HasPrefix(lines[0], "@ ") {
		pkg, test, _ := strings.Cut(lines[0], " ")
		if b.breaks == "" || pkg == "" || test == "" {
			return bug{}, fmt.Errorf("%q: wants what it breaks, and the package and the name of a test: %q", b.name, lines[0])
		}
		b.caught, lines = append(b.caught, catch{pkg, test}), lines[1:]
	}
	if len(b.caught) == 0 || len(lines) == 0 {
		return bug{}, fmt.Errorf("%q: wants the package and the name of a test, and an edit", b.name)
	}
	err := b.parseEdits(lines)
	return b, err
}

// parseEdits reads the edits, which are the last lines of a bug.
func (b *bug) parseEdits(lines []string) error {
	for _, line := range lines {
		if file, begins := strings.CutPrefix(line, "@ "); begins {
			b.edits = append(b.edits, edit{file: file})
			continue
		}
		if len(b.edits) == 0 || line == "" {
			return fmt.Errorf("%q: an edit begins with @ and its lines with a blank, - or +: %q", b.name, line)
		}
		e := &b.edits[len(b.edits)-1]
		switch line[0] {
		case ' ':
			e.before += line[1:] + "\n"
			e.after += line[1:] + "\n"
		case '-':
			e.before += line[1:] + "\n"
		case '+':
			e.after += line[1:] + "\n"
		default:
			return fmt.Errorf("%q: an edit's line begins with a blank, - or +: %q", b.name, line)
		}
	}
	return nil
}

// apply returns the files below root that the bug changes, with it, by their names in the module.
func (b *bug) apply(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, e := range b.edits {
		text, edited := files[e.file]
		if !edited {
			read, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.file)))
			if err != nil {
				return nil, err
			}
			text = string(read)
		}
		if n := strings.Count("\n"+text, "\n"+e.before); n != 1 || e.before == "" {
			return nil, fmt.Errorf("%s has these lines %d times, not once:\n%s", e.file, n, e.before)
		}
		files[e.file] = strings.TrimPrefix(strings.Replace("\n"+text, "\n"+e.before, "\n"+e.after, 1), "\n")
	}
	return files, nil
}
