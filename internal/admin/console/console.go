// Package console has the web console: pages that show a cluster in a browser, by the admin API.
//
// The sources are in web, in TypeScript. What is built of them is in dist and committed, so whoever builds the program
// needs nothing but Go; `make console` builds it anew, and a test in e2e compares the two. The types of the API come from
// its OpenAPI document.
//
// The pages use relative addresses and keep their place behind the # of the URL, so they work below any prefix. They load
// nothing from elsewhere, and a strict Content-Security-Policy permits nothing else.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:embed dist
var dist embed.FS

// Directory is where the files of the page are, beside the page.
const Directory = "console/"

// policy permits scripts, styles and images of the same origin and calls to it, and nothing else. Texts are never taken
// for markup: trusted types are required and none are made.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is a file of the console, as it is sent.
type file struct {
	kind string
	tag  string // ETag
	raw  []byte
	zip  []byte // compressed by gzip
}

// files returns the files by their paths. Compressing them takes some milliseconds, once.
var files = sync.OnceValues(func() (map[string]*file, error) {
	out := map[string]*file{}
	err := fs.WalkDir(dist, "dist", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := dist.ReadFile(name)
		if err != nil {
			return err
		}
		out[strings.TrimPrefix(name, "dist/")] = newFile(name, raw)
		return nil
	})
	return out, err
})

func newFile(name string, raw []byte) *file {
	sum := sha256.Sum256(raw)
	var zip bytes.Buffer
	w := gzip.NewWriter(&zip)
	_, _ = w.Write(raw) // a buffer takes everything
	_ = w.Close()
	return &file{kind: kindOf(name), tag: `"` + hex.EncodeToString(sum[:12]) + `"`, raw: raw, zip: zip.Bytes()}
}

// kinds are the media types, because those of the system may be others.
var kinds = map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

func kindOf(name string) string {
	if kind, ok := kinds[path.Ext(name)]; ok {
		return kind
	}
	return mime.TypeByExtension(path.Ext(name))
}

// Has reports whether a path is one of the console's: "/" or a path below /console/.
func Has(urlPath string) bool { return urlPath == "/" || strings.HasPrefix(urlPath, "/"+Directory) }

// Handler serves the console at "/" and its files below "/console/".
func Handler() http.Handler { return http.HandlerFunc(serve) }

func serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the console has only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	all, err := files()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if name == "" {
		name = "index.html"
	}
	f := all[name]
	if f == nil || name == "index.html" && r.URL.Path != "/" {
		http.NotFound(w, r)
		return
	}
	f.send(w, r)
}

// send answers with the file. Browsers ask each time whether they have it, so an upgrade shows at once.
func (f *file) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding, Accept")
	h.Set("ETag", f.tag)
	if strings.Contains(r.Header.Get("If-None-Match"), f.tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.raw
	if accepts(r.Header.Get("Accept-Encoding"), "gzip") {
		body = f.zip
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Type", f.kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // an error means that the browser has gone
	}
}

// accepts reports whether an Accept-Encoding header permits an encoding.
func accepts(header, encoding string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.TrimSpace(name) == encoding {
			q, isWeight := strings.CutPrefix(strings.TrimSpace(weight), "q=")
			n, err := strconv.ParseFloat(q, 64)
			return !isWeight || err != nil || n > 0
		}
	}
	return false
}
