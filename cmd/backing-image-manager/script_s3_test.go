package main

import (
	"os"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
)

// serveS3 starts an S3 server, see script_test.go.
func serveS3(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: s3 VAR CREDENTIALS BUCKET...")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.Mkdir(dir, 0o755))
	server, err := s3test.Run(dir, args[2:]...)
	ts.Check(err)
	ts.Defer(server.Close)
	ts.Check(server.Credentials(ts.MkAbs(args[1])))
	ts.Setenv(args[0], server.Dir)
	ts.Setenv(args[0]+"_URL", server.URL)
}
