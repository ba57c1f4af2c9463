package host

import (
	"net/http"
	"strings"

	"github.com/emitd/emitd/internal/admin/console"
)

// ofConsole reports whether a request is for the console. Its files are the same on every node and show nothing of the
// cluster, so they need no token.
func ofConsole(r *http.Request) bool {
	return console.Has(r.URL.Path) && (r.URL.Path != "/" || wantsPage(r))
}

// wantsPage reports whether the caller is a browser that shows a page.
func wantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

// addConsole adds the console to a mux. At the root, a browser gets the console and others a list of what is served.
func (h *host) addConsole(mux *http.ServeMux) {
	pages := console.Handler()
	mux.Handle("GET /"+console.Directory, pages)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if wantsPage(r) {
			pages.ServeHTTP(w, r)
			return
		}
		h.about(w, r)
	})
}
