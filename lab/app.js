// What the form's button lacks: a picture can be dropped, and a file that is too large is refused in a sentence.
(function (largest, tooLarge) {
    if (window.ownPictures) return  // the cell has run before
    window.ownPictures = true
    const formOf = event => event.target.closest?.('.own-picture')
    const ask = HTMLInputElement.prototype.click
    let dropped = null

    // A click on the button asks its hidden input for a file. This listener comes first and prepares the input.
    document.addEventListener('click', event => {
        const form = formOf(event)
        if (!form || !event.target.closest('.widget-upload')) return
        HTMLInputElement.prototype.click = function () {
            HTMLInputElement.prototype.click = ask
            this.addEventListener('change', change => {
                if (this.files[0].size <= largest) return
                change.stopImmediatePropagation()
                form.querySelector('.own-message .widget-html-content').textContent = `${this.files[0].name}: ${tooLarge}`
            }, {capture: true, once: true})
            if (dropped === null) return ask.call(this)
            this.files = dropped
            this.dispatchEvent(new Event('change'))
        }
    }, true)
    document.addEventListener('dragover', event => formOf(event) && event.preventDefault())
    document.addEventListener('drop', event => {
        const form = formOf(event)
        if (!form) return
        event.preventDefault()
        dropped = event.dataTransfer.files
        if (dropped.length) form.querySelector('.widget-upload').click()
        dropped = null
    })
})
