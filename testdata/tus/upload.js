// node upload.js ENDPOINT FILE NAME STATE [--chunk BYTES] [--stop BYTES] [--token TOKEN]
//
// Uploads FILE with tus-js-client, and goes on with what is in the file STATE, if that
// is there. Stops, without ending the upload, once so many bytes have gone.
const fs = require('fs')
const tus = require('tus-js-client')

const [endpoint, file, name, state, ...rest] = process.argv.slice(2)
const option = (key) => { const i = rest.indexOf(key); return i < 0 ? undefined : rest[i + 1] }
const stop = Number(option('--stop') ?? Infinity)
const token = option('--token')

const upload = new tus.Upload(fs.createReadStream(file), {
  endpoint,
  chunkSize: Number(option('--chunk') ?? Infinity),
  metadata: { name, filename: file, filetype: 'application/octet-stream' },
  headers: token ? { Authorization: `Bearer ${token}` } : {},
  retryDelays: Array(40).fill(200),
  urlStorage: new tus.FileUrlStorage(state),
  storeFingerprintForResuming: true,
  removeFingerprintOnSuccess: true,
  fingerprint: async () => file,
  onError (error) { console.error(String(error)); process.exit(1) },
  onSuccess () { console.log('uploaded') },
  onProgress (sent) {
    if (sent >= stop) upload.abort().then(() => { console.log('stopped'); process.exit(0) })
  },
})
upload.findPreviousUploads().then((before) => {
  if (before.length > 0) {
    console.log('resumed')
    upload.resumeFromPreviousUpload(before[0])
  }
  upload.start()
})
