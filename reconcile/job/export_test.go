package job

// ErrOtherChunk is for external tests.
var ErrOtherChunk = errOtherChunk
