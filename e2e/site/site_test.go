package site

import (
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

const (
	root       = "../.."
	repository = "https://github.com/emitd/emitd/blob/main/"
)

// page is what the test needs of a page of the site.
type page struct {
	title string
	ids   map[string]int // how often an element has this id
	links []string       // of a, link, img and script
	heads int            // h1
}

// TestSite builds the site and follows each of its links.
func TestSite(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "site")
	build := exec.Command("make", "-s", "-C", root, "docs", "SITE="+dir)
	if out, err := build.CombinedOutput(); err != nil || strings.Contains(string(out), "WARN") || strings.Contains(string(out), "ERROR") {
		t.Fatalf("make docs (it needs hugo; make deps installs it): %v\n%s", err, out)
	}
	pages := map[string]page{}
	files := walk(t, dir)
	for name := range files {
		if strings.HasSuffix(name, ".html") {
			pages[name] = parse(t, filepath.Join(dir, name))
		}
	}
	for name, p := range pages {
		if strings.TrimSpace(p.title) == "" || p.heads != 1 {
			t.Errorf("%s has the title %q and %d main headings", name, p.title, p.heads)
		}
		for id, n := range p.ids {
			if n > 1 {
				t.Errorf("%s has the id %s %d times", name, id, n)
			}
		}
		for _, link := range p.links {
			if problem := follow(name, link, files, pages); problem != "" {
				t.Errorf("%s links to %s: %s", name, link, problem)
			}
		}
	}
	for name := range walk(t, filepath.Join(root, "docs")) {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		want := strings.TrimSuffix(strings.TrimSuffix(name, ".md"), "/README") + ".html"
		if name == "README.md" {
			want = "index.html"
		}
		if _, there := pages[want]; !there {
			t.Errorf("docs/%s has no page %s", name, want)
		}
		if want != "index.html" && !strings.HasPrefix(want, "decisions/") && !linked(pages["index.html"], want) {
			t.Errorf("the menu has no %s", want)
		}
	}
}

// TestFollow: a link to a file, a page or a heading that is not there is found.
func TestFollow(t *testing.T) {
	t.Parallel()
	files := map[string]bool{"index.html": true, "how-to/x.html": true, "style.css": true}
	pages := map[string]page{"index.html": {}, "how-to/x.html": {ids: map[string]int{"there": 1}}}
	for link, dead := range map[string]bool{
		"../index.html": false, "x.html#there": false, "#there": false, "../style.css": false, repository + "go.mod": false,
		"https://riverqueue.com": false,
		"../absent.html":         true, "x.html#absent": true, "#absent": true, repository + "absent": true, "/index.html": true, "../../up.html": true,
	} {
		if problem := follow("how-to/x.html", link, files, pages); (problem != "") != dead {
			t.Errorf("%s: %q", link, problem)
		}
	}
}

// follow returns what is wrong with a link of a page, or nothing.
func follow(from, link string, files map[string]bool, pages map[string]page) string {
	u, err := url.Parse(link)
	switch {
	case err != nil:
		return err.Error()
	case strings.HasPrefix(link, repository):
		if _, err := os.Stat(filepath.Join(root, strings.TrimPrefix(strings.TrimSuffix(link, "#"+u.Fragment), repository))); err != nil {
			return "the repository has no such file"
		}
		return ""
	case u.IsAbs():
		return "" // another site's
	case strings.HasPrefix(u.Path, "/"):
		return "it only works at the root of a host"
	}
	to := from
	if u.Path != "" {
		to = path.Join(path.Dir(from), u.Path)
	}
	if !files[to] {
		return "the site has no such file"
	}
	if u.Fragment != "" && pages[to].ids[u.Fragment] == 0 {
		return "the page has no such heading"
	}
	return ""
}

func linked(p page, to string) bool {
	for _, link := range p.links {
		if path.Clean(link) == to {
			return true
		}
	}
	return false
}

// walk returns the files below a folder.
func walk(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files := map[string]bool{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, name)
			files[filepath.ToSlash(rel)] = true
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	return files
}

func parse(t *testing.T, file string) page {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := html.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	p := page{ids: map[string]int{}}
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		switch {
		case n.Data == "h1":
			p.heads++
		case n.Data == "title" && n.FirstChild != nil:
			p.title = n.FirstChild.Data
		}
		for _, a := range n.Attr {
			switch a.Key {
			case "id":
				p.ids[a.Val]++
			case "href", "src":
				p.links = append(p.links, a.Val)
			}
		}
	}
	return p
}
