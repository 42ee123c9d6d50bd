package main

import "net/http"

// What a web page may send and read when it uploads.
const (
	pageMethods = "GET, HEAD, POST, PATCH, DELETE, OPTIONS"
	pageSends   = "Authorization, Content-Type, X-HTTP-Method-Override, X-Requested-With, Tus-Resumable, Upload-Length, Upload-Offset, Upload-Metadata, Upload-Defer-Length, Upload-Checksum, Upload-Zeros"
	pageReads   = "Location, Retry-After, Tus-Resumable, Tus-Version, Tus-Extension, Tus-Checksum-Algorithm, Upload-Offset, Upload-Length, Upload-Expires, Upload-Metadata, Upload-Defer-Length"
)

// letPagesUpload lets a browser pass on to a web page, of whatever origin, what a
// daemon answers that asks for tokens. A page has to be given the token for that: a
// browser sends none by itself, and a certificate that it shows counts for nothing
// (see guard.admit). It reports whether r was the browser's question whether it may,
// which it asks without the token.
func letPagesUpload(w http.ResponseWriter, r *http.Request) (answered bool) {
	if r.Header.Get("Origin") == "" {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", pageReads)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", pageMethods)
	h.Set("Access-Control-Allow-Headers", pageSends)
	w.WriteHeader(http.StatusNoContent)
	return true
}
