// Package plaincall answers frequent HTTP calls at a lower cost than net/http, in front of an [http.Server] that answers
// everything else.
//
// A plain call is a POST of HTTP/1.1 to a path that the configuration names, with a Content-Length, nothing unusual in
// its head, and few enough bytes that all of them have arrived with the first read. Such a call is parsed here and given
// to the same [http.Handler]. For a caller, the answer is the one that net/http would send.
//
// A connection whose next call is anything else is passed on to the server, with the bytes that were read, and stays
// there. So TLS, HTTP/2, WebSockets, chunked bodies, long heads, slow senders and attacks meet net/http alone. This package
// refuses nothing: what it does not fully understand, it passes on.
//
// What is saved: net/http starts a goroutine in each call, which watches whether the caller goes away, and moves the
// connection's deadlines several times. Here a call is watched only once it has lasted for 20 ms, and deadlines are
// moved at most once a second.
package plaincall
