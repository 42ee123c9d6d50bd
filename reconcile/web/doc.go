// Package web is the web page of a daemon, for people with a browser. It needs no account at another service, and
// loads nothing from another host.
//
// A view of the page is HTML that this package renders from the status document, which the loop publishes
// after each round. Reading needs no JavaScript. With JavaScript, the view stays current: the script requests the
// same address with the parameter "poll", the tag of the view that it shows. It gets the view when that has
// another tag. Equal views are rendered once for all readers.
//
// The page never writes configuration: the view "lines" shows what to commit. Readers with the role admin
// may do other things without a commit. The script requests them from the HTTP API (package api), with the
// same rules as for every other client.
//
//	Loop -> status document -> snapshot -> view (a value) -> template -> HTML
//
// All text in the document may come from outside: a peer, a file name, an upstream. It reaches the page only
// through html/template. The content security policy allows only what this daemon serves, and no inline
// scripts or styles.
//
// Reading order: site.go (routes, roles, headers), signin.go, asset.go, snapshot.go (rendering and waiting), query.go, then one
// file for each view: cluster.go, image.go, disks.go, plan.go, configuration.go, lines.go.
package web
