// Package site tests the documents as a site: make docs builds it, every page of docs/ is there, and no link is dead.
package site
