package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/seed-26586806/backing-image-manager/disk"
)

//go:embed demo/parrot.qcow2.zst demo/desert.raw.zst
var demoImages embed.FS

// demoOrigin is where the images of the demo come from.
type demoOrigin struct {
	url  string
	sums map[string]disk.Digest // of its files
}

// serveDemo unpacks the images into the folder dir and serves them on loopback until
// the server is closed.
func serveDemo(dir string) (*http.Server, demoOrigin, error) {
	o := demoOrigin{sums: map[string]disk.Digest{}}
	if err := errors.Join(os.Mkdir(dir, 0o755), o.unpack(dir)); err != nil {
		return nil, o, fmt.Errorf("make images of the demo: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, o, err
	}
	o.url = "http://" + listener.Addr().String()
	server := &http.Server{Handler: http.FileServer(http.Dir(dir)), ReadHeaderTimeout: time.Minute}
	go server.Serve(listener) // until it is closed: there is no other error to hear of
	return server, o, nil
}

func (o *demoOrigin) unpack(dir string) error {
	parrot, err := unpackDemo("demo/parrot.qcow2.zst")
	if err != nil {
		return err
	}
	desert, err := unpackDemo("demo/desert.raw.zst")
	if err != nil {
		return err
	}
	second := bytes.Replace(parrot, []byte("edition 1"), []byte("edition 2"), 1)
	return errors.Join(
		o.save(dir, "parrot-1.qcow2", parrot),
		o.save(dir, "parrot-2.qcow2", second),
		o.save(dir, "desert.raw", desert))
}

func unpackDemo(name string) ([]byte, error) {
	packed, err := demoImages.ReadFile(name)
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	return decoder.DecodeAll(packed, nil)
}

func (o *demoOrigin) save(dir, name string, data []byte) error {
	h := disk.SHA256.New()
	h.Write(data)
	o.sums[name] = disk.SHA256.Sum(h)
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	return errors.Join(writeSparse(f, data), f.Close())
}

// writeSparse leaves holes where data has zeros.
func writeSparse(f *os.File, data []byte) error {
	const step = 64 << 10
	zeros, at := make([]byte, step), int64(0)
	for block := range slices.Chunk(data, step) {
		if !bytes.Equal(block, zeros[:len(block)]) {
			if _, err := f.WriteAt(block, at); err != nil {
				return err
			}
		}
		at += int64(len(block))
	}
	return f.Truncate(at)
}
