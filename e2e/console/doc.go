// Package console tests the web console in a real browser, against a cluster of real processes, and that what is committed
// of it is what its sources give.
//
// It needs Node.js with npm and Chromium; make deps installs them. What npm installs is kept in the user's cache.
package console
